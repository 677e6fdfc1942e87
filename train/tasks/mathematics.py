"""Mathematics: a question in, a worked solution out, rewarded by its final number.

The source is a generator of `reasoning-gym` or a GSM8K folder, see `math_problems`; how the final
number is found and compared, see `train.rewards.numbers`.
"""

from collections.abc import Mapping, Sequence

from train.rewards.numbers import NumberJob, NumberReward
from train.tasks.base import Item, Score
from train.tasks.math_problems import Problem, read_problems
from train.tasks.records import choose


class Mathematics:
    """The mathematics task over one source.

    Args:
        source: `reasoning-gym:` and the name of a generator, or a folder.
        train_limit: Training items at most; 0 keeps all.
        heldout_limit: Held-out items at most; 0 keeps all.
        seed: Chooses the items under a limit.
        workers: Processes that judge answers that are no plain numbers.

    Attributes:
        accuracy_part: The final number equals the gold one.
        train_items: In the order of the source.
        heldout: One set, `test`.
        warm_start_items: What the limit leaves of the training half.

    Raises:
        ValueError: The source cannot be read, has no problems, or a library is missing.
    """

    accuracy_part = "accuracy"

    def __init__(
        self,
        source: str = "reasoning-gym:gsm_symbolic",
        *,
        train_limit: int = 0,
        heldout_limit: int = 0,
        seed: int = 0,
        workers: int = 2,
    ) -> None:
        train, heldout = ([Item(*one) for one in half.items()] for half in read_problems(source))
        if not train:
            raise ValueError(f"{source}: found no training problems, allowed: one or more")
        chosen = choose(train, train_limit, seed, _question)
        self.train_items: Sequence[Item] = chosen
        self.heldout: Mapping[str, Sequence[Item]] = {
            "test": choose(heldout, heldout_limit, seed, _question)
        }
        indices = {item.index for item in chosen}
        self.warm_start_items: Sequence[Item] = [i for i in train if i.index not in indices]
        self._reward = NumberReward(workers=workers)

    def prompt(self, item: Item) -> str:
        """The question, up to where the solution begins."""
        return f"Question: {_question(item)}\nAnswer:\n"

    def response(self, item: Item) -> str:
        """The worked solution."""
        problem: Problem = item.payload
        return problem.solution

    def score(self, items: Sequence[Item], texts: Sequence[str]) -> list[Score]:
        """Parts: `accuracy`, `answered`; faults: `killed` (see `NumberReward`)."""
        return self._reward(
            [NumberJob(item.payload.gold, text) for item, text in zip(items, texts, strict=True)]
        )

    def close(self) -> None:
        """Ends the worker processes."""
        self._reward.close()


def _question(item: Item) -> str:
    problem: Problem = item.payload
    return problem.question
