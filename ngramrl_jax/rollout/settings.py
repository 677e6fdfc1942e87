"""Settings of a rollout engine."""

from dataclasses import dataclass, field

from ngramrl_jax.rollout.round import DraftShape, VerifierName
from ngramrl_jax.types import Sampling


@dataclass(frozen=True)
class EngineSettings:
    """What shapes the engine's programs and its schedule.

    Attributes:
        slots: B, rows of the device batch.
        draft_tokens: K, the draft budget; 0 is plain decoding.
        max_prompt_tokens: Longest prompt admitted.
        max_new_tokens: Longest response admitted.
        stop_ids: Ids that end a response.
        sampling: Makes the adjusted distribution.
        verifier: "coupled" or "rejection", see `DecodeRule`.
        plain_rounds: Plain rounds in one dispatch where K is 0.
        refill_slots: Free slots at which a plain dispatch ends while requests wait. A drafting
            round ends anyway.
        prefix_entries: Prompts whose prefix cache is kept; at least one a slot always is, so that
            no prompt is pushed out before its rows are admitted. With fewer than the prompts of
            a step, waves run a prompt again for each sibling.
        wave: Siblings of a group that start in the same wave.
        best_tokens: R, how many of the target's most likely tokens are kept of each position, for
            the drafter to learn from; 0 keeps none.
        draft_shape: "chain", one continuation of K tokens, or "tree", several that have K tokens
            together; needs the coupled verifier.

    Raises:
        ValueError: A setting lies outside its range.
    """

    slots: int
    draft_tokens: int
    max_prompt_tokens: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    verifier: VerifierName = "coupled"
    plain_rounds: int = 16
    refill_slots: int = 2
    prefix_entries: int = 0
    wave: int = 1
    best_tokens: int = 8
    draft_shape: DraftShape = "chain"

    def __post_init__(self) -> None:
        least = {
            "slots": 1,
            "draft_tokens": 0,
            "max_prompt_tokens": 1,
            "max_new_tokens": 1,
            "plain_rounds": 1,
            "refill_slots": 1,
            "prefix_entries": 0,
            "wave": 1,
            "best_tokens": 0,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}: found {getattr(self, name)}, allowed: {low} or more")
        if self.verifier not in ("coupled", "rejection"):
            raise ValueError(f"verifier: found {self.verifier}, allowed: coupled, rejection")
        if self.draft_shape not in ("chain", "tree"):
            raise ValueError(f"draft_shape: found {self.draft_shape}, allowed: chain, tree")
        if self.draft_shape == "tree" and self.verifier != "coupled":
            raise ValueError(
                f"draft_shape: found tree with the verifier {self.verifier}, allowed: chain, or "
                "the verifier coupled"
            )

    @property
    def shares_noise(self) -> bool:
        """Whether drafters are told the rows' keys.

        The rejection verifier's proof wants drafts that know nothing of its randomness, and
        arg-max uses none.
        """
        return self.verifier == "coupled" and not self.sampling.greedy

    @property
    def drafts_trees(self) -> bool:
        """Whether the drafter is asked for trees."""
        return self.draft_shape == "tree" and self.draft_tokens > 0

    @property
    def draft_columns(self) -> int:
        """Columns of a round's packed drafts: of trees, tokens and parents."""
        return self.draft_tokens * (2 if self.drafts_trees else 1)

    @property
    def capacity(self) -> int:
        """S, cache positions of a row: the longest sequence and one draft beyond it."""
        return self.max_prompt_tokens + self.max_new_tokens + self.draft_tokens
