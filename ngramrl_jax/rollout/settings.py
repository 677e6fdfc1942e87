"""Settings of a rollout engine."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from ngramrl_jax.rollout.round import DraftShape, VerifierName
from ngramrl_jax.types import Sampling

DraftLengthName = Literal["auto", "fixed"]
PrefetchName = Literal["off", "host", "device"]

_NAMES = {
    "verifier": get_args(VerifierName),
    "draft_shape": get_args(DraftShape),
    "draft_length": get_args(DraftLengthName),
    "prefetch": get_args(PrefetchName),
}
_NEEDED_BY_TREES = {"verifier": "coupled", "draft_length": "fixed", "prefetch": "off"}


@dataclass(frozen=True)
class EngineSettings:
    """What shapes the engine's programs and its schedule.

    Attributes:
        slots: B, rows of the device batch.
        draft_tokens: K, the draft budget; 0 is plain decoding.
        draft_length: "fixed" verifies K tokens in every round. "auto" chooses each round's length
            up to K by what it promises a second, plain decoding among the choices: then timing
            decides shapes, and with them the last bits of log-probabilities. Only drafts that are
            made between rounds can be cut by what they are: "auto" goes with `prefetch` "off".
        max_prompt_tokens: Longest prompt admitted.
        max_new_tokens: Longest response admitted.
        stop_ids: Ids that end a response.
        sampling: Makes the adjusted distribution.
        verifier: "coupled", "rejection" or "forced", see `DecodeRule`.
        plain_rounds: Plain rounds in one dispatch where K is 0.
        refill_slots: Free slots at which a plain dispatch ends while requests wait. A drafting
            round ends anyway.
        prefix_entries: Prompts whose prefix cache is kept; at least one a slot always is, so that
            no prompt is pushed out before its rows are admitted. With fewer than the prompts of
            a step, waves run a prompt again for each sibling.
        wave: Siblings of a group that start in the same wave; 0 starts requests as they come.
        best_tokens: R, how many of the target's most likely tokens are kept of each position, for
            the drafter to learn from; 0 keeps none.
        prefetch: When drafts are made, see `rollout.pipeline`: "off" between rounds, while the
            device waits; "host" during the round before, for its likely outcomes, among which the
            host picks; "device" likewise, but the device picks, and does not wait. Tokens do not
            depend on it. A drafter that cannot foresee, and K = 0, run as "off".
        prefetch_candidates: F, outcomes of a row for which drafts are held ready at most.
        look_up_share: With "device": what it costs to call a round off for a look-up, in rounds;
            rows that miss run without a draft where that is cheaper, and so it is with waiting for
            rows that are likely to end. None measures it; then the clock has a say in which
            rows get drafts, and a run does not repeat bit for bit.
        draft_shape: "chain", one continuation of K tokens, or "tree", several that have K tokens
            together; needs the coupled verifier, a fixed `draft_length` and no `prefetch`.

    Raises:
        ValueError: A setting lies outside its range.
    """

    slots: int
    draft_tokens: int
    max_prompt_tokens: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    sampling: Sampling = field(default_factory=Sampling)
    draft_length: DraftLengthName = "fixed"
    verifier: VerifierName = "coupled"
    plain_rounds: int = 16
    refill_slots: int = 2
    prefix_entries: int = 0
    wave: int = 1
    best_tokens: int = 8
    prefetch: PrefetchName = "off"
    prefetch_candidates: int = 16
    look_up_share: float | None = 0.15
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
            "wave": 0,
            "best_tokens": 0,
            "prefetch_candidates": 1,
        }
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name}: found {getattr(self, name)}, allowed: {low} or more")
        for name, allowed in _NAMES.items():
            found = getattr(self, name)
            if found not in allowed:
                raise ValueError(f"{name}: found {found}, allowed: {', '.join(allowed)}")
        if self.look_up_share is not None and not self.look_up_share >= 0.0:
            raise ValueError(f"look_up_share: found {self.look_up_share}, allowed: 0 or more")
        if self.prefetch != "off" and self.draft_length != "fixed":
            raise ValueError(
                f"draft_length: found {self.draft_length} with prefetch {self.prefetch}, "
                "allowed: fixed"
            )
        for name, needed in _NEEDED_BY_TREES.items():
            found = getattr(self, name)
            if self.draft_shape == "tree" and found != needed:
                raise ValueError(
                    f"draft_shape: found tree with {name} {found}, allowed: chain, or {name} "
                    f"{needed}"
                )

    @property
    def shares_noise(self) -> bool:
        """Whether drafters are told the rows' keys.

        The rejection verifier's proof wants drafts that know nothing of its randomness, and
        arg-max uses none.
        """
        return self.verifier != "rejection" and not self.sampling.greedy

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
