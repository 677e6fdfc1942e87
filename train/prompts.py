"""Items as token ids, and the rollout requests made of them.

Legend: P prompt tokens, N response tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ngramrl_jax.types import Int32Array, RolloutRequest
from train.tasks.base import Item, Task
from train.text import TextCodec


@dataclass(frozen=True)
class Prompt:
    """An item of a task and the ids of its prompt.

    Attributes:
        item: The item; its index is the prompt id.
        tokens_P: int32 ids of the prompt.
    """

    item: Item
    tokens_P: Int32Array


def encode_prompts(
    task: Task, codec: TextCodec, items: Sequence[Item], longest: int
) -> list[Prompt]:
    """The prompts of at most `longest` tokens, in order; longer ones are left out.

    Raises:
        ValueError: The task gives something other than a text of one token or more.
    """
    prompts = [Prompt(item, _encode(task, codec, item)) for item in items]
    return [prompt for prompt in prompts if len(prompt.tokens_P) <= longest]


def _encode(task: Task, codec: TextCodec, item: Item) -> Int32Array:
    text = task.prompt(item)
    try:
        tokens_P = codec.encode_prompt(text)
    except TypeError:  # no text, or one with half a surrogate pair
        tokens_P = None
    if tokens_P is None or not len(tokens_P):
        found = f"{text!r:.60}"
        raise ValueError(f"prompt of item {item.index}: found {found}, allowed: a text with tokens")
    return tokens_P


def group_requests(
    prompts: Sequence[Prompt], group: int, max_new_tokens: int
) -> list[RolloutRequest]:
    """`group` requests for each prompt, siblings side by side."""
    return [
        RolloutRequest(prompt.item.index, sibling, prompt.tokens_P, max_new_tokens)
        for prompt in prompts
        for sibling in range(group)
    ]
