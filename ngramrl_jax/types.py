"""Host-side types that every layer shares. NumPy only: importing this never loads jax.

Dimension legend, used in array names everywhere (`logits_BKV`, `tokens_BT`):

    B  rows (slots) of the device batch       K  draft tokens of one row, the draft budget
    T  tokens of one forward, K + 1           V  vocabulary
    N  rollouts or requests on the host       P  prompt tokens
    S  cache capacity, positions of a row     R  best tokens kept of a position
    H  query heads                            J  key/value heads
    D  model width                            E  width of one head
    L  layers
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
UInt32Array = NDArray[np.uint32]
Float32Array = NDArray[np.float32]
BoolArray = NDArray[np.bool_]


# Below this temperature, divided logits have no digits left in float32: it means arg-max.
GREEDY_BELOW = 1e-5


@dataclass(frozen=True)
class Sampling:
    """Parameters of the adjusted distribution: temperature first, then top-k, then top-p.

    Attributes:
        temperature: Divides the logits; under `GREEDY_BELOW` it means arg-max (ties go to the
            lowest id).
        top_k: Keep the k most likely tokens; 0 keeps all.
        top_p: Keep the smallest set of most likely tokens whose mass reaches top_p; 1 keeps all.

    Raises:
        ValueError: A parameter lies outside its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature: found {self.temperature}, allowed: 0 or more, finite")
        if self.top_k < 0:
            raise ValueError(f"top_k: found {self.top_k}, allowed: 0 (off) or more")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: found {self.top_p}, allowed: above 0, at most 1")

    @property
    def greedy(self) -> bool:
        """Whether the distribution is a single point."""
        return self.temperature < GREEDY_BELOW


@dataclass(frozen=True)
class RolloutRequest:
    """One rollout to be sampled.

    Attributes:
        prompt_id: Names the prompt for its history and its noise; any int32 of 0 or more.
        sibling: Index within the group of the same prompt.
        prompt_P: int32 token ids of the prompt, at least one.
        max_new_tokens: Response tokens at most, stop token included.
        attempt: Raised when the same rollout of a step is sampled again with new noise.
        forced_N: int32, recorded response ids to be committed instead of what is sampled, by the
            verifier "forced"; None where there are none.
        forced_best: What the recorded run's policy held most likely, which drafts are made from
            then; None where that is not known.
    """

    prompt_id: int
    sibling: int
    prompt_P: Int32Array
    max_new_tokens: int
    attempt: int = 0
    forced_N: Int32Array | None = None
    forced_best: "BestTokens | None" = None

    @property
    def identity(self) -> tuple[int, int, int]:
        """What tells the requests of a step apart, and with them their noise."""
        return self.prompt_id, self.sibling, self.attempt


@dataclass(frozen=True)
class BestTokens:
    """What the target held most likely at each position of a rollout, best first.

    Attributes:
        ids_NR: int32.
        logps_NR: float32 log-probabilities under the adjusted distribution (nats), -inf where
            fewer than R tokens are possible.
    """

    ids_NR: Int32Array
    logps_NR: Float32Array


@dataclass(frozen=True)
class Rollout:
    """One sampled response, N response tokens long.

    Attributes:
        prompt_id: From the request.
        sibling: From the request.
        prompt_P: int32 token ids of the prompt.
        tokens_N: int32 response ids, the stop token included where there is one.
        logps_N: float32 log-probability of each token under the adjusted distribution (nats).
        drafted_N: bool, True where the token was an accepted draft, False where the target
            emitted it.
        truncated: True where the length limit, not a stop token, ended the response.
        policy_version: Version of the parameters that sampled it.
        step: Training step whose noise it was sampled with.
        rounds: Row-rounds that it took.
        attempt: From the request.
        best: The target's most likely tokens at each position; None where they were not asked for.
        slot: Place in the device batch.
        started: Dispatches of its step before it entered the slot; requests enter in the order of
            (started, slot).
        finished: Dispatches of its step after which it was complete.
    """

    prompt_id: int
    sibling: int
    prompt_P: Int32Array
    tokens_N: Int32Array
    logps_N: Float32Array
    drafted_N: BoolArray
    truncated: bool
    policy_version: int
    step: int
    rounds: int
    attempt: int = 0
    best: BestTokens | None = None
    slot: int = 0
    started: int = 0
    finished: int = 0

    @property
    def identity(self) -> tuple[int, int, int]:
        """The request's `identity`."""
        return self.prompt_id, self.sibling, self.attempt
