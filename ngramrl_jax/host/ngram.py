"""The NgramRL drafter: what the prompt's recent rollouts said next, proposed for all rows at once.

Legend: B rows, K draft budget, T tokens of a round, P prompt tokens, N response tokens, W words of
a key.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from ngramrl_jax.host.calibration import Calibration, Flight
from ngramrl_jax.host.checks import as_id, as_rows, as_token_ids, at_least
from ngramrl_jax.host.common import CommonLaws, learn_log, no_common_laws
from ngramrl_jax.host.draft import Rows, Rule, draft_rows
from ngramrl_jax.host.fan_out import draft_entries
from ngramrl_jax.host.history import History
from ngramrl_jax.host.log import GRAMS, NONE
from ngramrl_jax.host.noise import row_key
from ngramrl_jax.host.outcome_laws import empty_guesses, guess_rows, new_calibration
from ngramrl_jax.host.outcomes import Budget, Outcomes, allocate, outcomes_of, priorities
from ngramrl_jax.host.protocol import FanOut
from ngramrl_jax.host.text_drafter import TextDrafter
from ngramrl_jax.types import BestTokens, Int32Array, UInt32Array

DEFAULT_RULE = Rule()
DEFAULT_BUDGET = Budget()

_IDLE = -1
_UNKNOWN = -1
_ROWS_A_THREAD = 32  # fewer are not worth waking a thread for
_OWN_BUCKETS = 1024


class NgramDrafter(TextDrafter):
    """Drafts from the prompt's history; see `ngramrl_jax.host.protocol.Drafter`.

    Each draft token continues the longest suffix of (start of response + response + draft so far)
    that occurs in the prompt's history, or the longest suffix of prompt + response that occurs in
    the row's own prompt and response, where that one is longer. Of several places those are asked,
    six at most, before which most of the last 16 tokens are the same. Each says how likely which
    token is: by the policy's law there, where the history knows it, else by the token that was
    drawn. With the row's key known, the draft is the token that the target would draw from the mean
    of these laws with its own noise (`ngramrl_jax.host.noise`); without it, the most likely one.

    Not thread-safe: one thread at a time calls a drafter; the history may be observed by another.

    Attributes:
        history: Rollouts to draft from; may be shared by drafters.
        draft_tokens: K.
        match_length_B: int32, length of the suffix that each of the last drafts continues.
    """

    def __init__(
        self,
        rows: int,
        draft_tokens: int,
        history: History,
        rule: Rule = DEFAULT_RULE,
        *,
        threads: int = 0,
        budget: Budget = DEFAULT_BUDGET,
        stop_ids: Sequence[int] = (),
        calibration: Calibration | None = None,
    ) -> None:
        """A drafter for `rows` idle rows.

        Args:
            rows: B, at least 1.
            draft_tokens: K, at least 0.
            history: Rollouts to draft from.
            rule: How it guesses.
            threads: Among which the rows are divided; 0 for one a core, as long as each has 32.
            budget: What is drafted for outcomes that are foreseen.
            stop_ids: Tokens that end a response: behind them nothing is foreseen.
            calibration: What earlier drafters have learnt of how likely outcomes are.

        Raises:
            ValueError: A setting lies outside its range.
        """
        super().__init__(rows, draft_tokens, spare=2 * draft_tokens + 1)
        self.history = history
        self._rule = Rule(*rule)
        at_least("followed", rule.followed, 1)
        at_least("steps", rule.steps, 1)
        at_least("skipped", rule.skipped, 0)
        self._budget = budget
        self._stop_ids = as_token_ids("stop_ids", stop_ids) if stop_ids else np.zeros(0, np.int32)
        self._common: CommonLaws | None = None  # large, and of no use before the first `foresee`
        self._calibration = calibration or new_calibration()
        self._guesses = empty_guesses(rows, draft_tokens + 1)
        self._flight: Flight  # what the last `foresee` was told
        self._prompt_B = np.full(rows, _IDLE, np.int32)
        self._oldest_B = np.full(rows, NONE, np.int32)
        self._known_version = history.version
        self._key_BW = np.zeros((rows, 2), np.uint32)
        self._keyed_B = np.zeros(rows, bool)
        of_itself = max(1, min(os.cpu_count() or 1, rows // _ROWS_A_THREAD))
        threads = at_least("threads", threads, 0) or of_itself
        bounds = np.linspace(0, rows, threads + 1).astype(int).tolist()
        self._spans = list(pairwise(bounds))
        self._helpers = ThreadPoolExecutor(threads)
        self._chain_again()

    def start_row(
        self, row: int, prompt_id: int, prompt_P: Int32Array, key_W: UInt32Array | None = None
    ) -> None:
        """Slot `row` begins a new response to the prompt; its earlier state is forgotten.

        Raises:
            ValueError: No such row, or a prompt id or tokens that are no int32 of 0 or more.
        """
        as_id("prompt_id", prompt_id)
        super().start_row(row, prompt_id, prompt_P)
        self._prompt_B[row] = prompt_id
        self._known_version = _UNKNOWN
        self._keyed_B[row] = key_W is not None
        if key_W is not None:
            self._key_BW[row] = key_W
        self._noted_B[row] = 0
        self._bucket_BGH[row] = NONE

    def finish_row(self, row: int) -> None:
        """Nothing is foreseen for the row; see `TextDrafter.finish_row`."""
        super().finish_row(row)
        self._guesses.count_BT[row] = 0

    def commit(self, tokens_BT: Int32Array, count_B: Int32Array) -> None:
        """Learns from the round that was foreseen; see `TextDrafter.commit`."""
        super().commit(tokens_BT, count_B)
        if self._guesses.count_BT.any():
            told = np.array(tokens_BT, np.int32, order="C"), np.array(count_B, np.int32)
            self._calibration.learn(self._guesses, self._flight, *told)
            self._guesses.count_BT[:] = 0

    def foresee(self, flight_BK: Int32Array, flown_B: Int32Array, room_B: Int32Array) -> FanOut:
        """Drafts for the likely outcomes of the round in flight; see `protocol.Foresight`.

        An entry's draft is what `propose` would give after `commit` of its outcome, as long as the
        history stays the same.

        Raises:
            ValueError: Arrays that are not as described there.
        """
        with self.history.lock:
            outcomes = self._outcomes(flight_BK, flown_B, room_B)
            flight, budget, past = self._flight, self._budget, self._calibration
            claim_BTX = priorities(outcomes, flight.length_B, budget, past.kept, past.power)
            chosen_BF = allocate(claim_BTX, budget)
            empty_BF, shape = np.zeros_like(chosen_BF), (*chosen_BF.shape, self.draft_tokens)
            drafts = empty_BF, empty_BF.copy(), np.zeros(shape, np.int32), empty_BF.copy()
            rows = self._view()._replace(end_B=self._text.end_B.copy())
            self._divided(draft_entries, rows, flight, outcomes.ids_BTX, chosen_BF, *drafts)
        mass_BY = outcomes.mass_BTX.reshape(self.rows, -1)
        mass_BF = np.take_along_axis(mass_BY, np.maximum(chosen_BF, 0), axis=1)
        mass_BF = np.where(chosen_BF < 0, np.float32(0), mass_BF)
        return FanOut(*drafts, mass_BF, outcomes.ending_B)

    def outcomes(self, flight_BK: Int32Array, flown_B: Int32Array, room_B: Int32Array) -> Outcomes:
        """How likely which outcome of the round in flight is; arguments as for `foresee`."""
        with self.history.lock:
            return self._outcomes(flight_BK, flown_B, room_B)

    def _outcomes(self, flight_BK: Int32Array, flown_B: Int32Array, room_B: Int32Array) -> Outcomes:
        room_B = as_rows("room_B", room_B, (self.rows,))
        room_B[self._text.end_B == 0] = 0
        length_B = as_rows("flown_B", flown_B, (self.rows,)).clip(0, self.draft_tokens)
        draft_BK = as_rows("flight_BK", flight_BK, (self.rows, self.draft_tokens))
        self._flight = Flight(draft_BK, length_B, room_B)
        if self._common is None:
            self._common = no_common_laws()
            learn_log(self._common, self.history.log, 0, int(self.history.log.used[0]))
        self._guesses.count_BT[:] = 0
        chance_BTX = np.zeros(self._guesses.ids_BTX.shape, np.float32)
        self._divided(
            guess_rows,
            self._view(),
            self._common,
            self._flight,
            self._calibration.pool,
            self._calibration.seen_CM,
            self._budget.least,
            self._guesses,
            chance_BTX,
        )
        return outcomes_of(self._guesses.ids_BTX.copy(), chance_BTX, self._flight, self._stop_ids)

    def observe(
        self, prompt_id: int, tokens_N: Int32Array, step: int, best: BestTokens | None = None
    ) -> None:
        """A finished rollout (stop token included) of training step `step` becomes history.

        Raises:
            ValueError: See `History.observe`.
        """
        self.history.observe(prompt_id, tokens_N, step, best)
        if self._common is not None:
            with self.history.lock:
                end = int(self.history.log.used[0])
                learn_log(self._common, self.history.log, max(end - len(tokens_N) - 1, 0), end)

    def _draft(
        self,
        wanted_B: Int32Array,
        draft_BK: Int32Array,
        length_B: Int32Array,
        match_length_B: Int32Array,
    ) -> None:
        with self.history.lock:
            self._divided(draft_rows, self._view(), wanted_B, draft_BK, length_B, match_length_B)

    def _divided(self, drafting: Callable[..., None], rows: Rows, *arguments: object) -> None:
        """Runs a kernel on all rows, several threads at a time."""
        before = self.history.log, rows, self._rule
        mine, *others = self._spans
        helped = [self._helpers.submit(drafting, *before, *span, *arguments) for span in others]
        drafting(*before, *mine, *arguments)
        for one in helped:
            one.result()

    def _view(self) -> Rows:
        if self._chain_BGS.shape[2] != self._text.text_BS.shape[1]:
            self._chain_again()
        if self._known_version != self.history.version:
            self._oldest_B[:] = [self.history.oldest(prompt) for prompt in self._prompt_B.tolist()]
            self._known_version = self.history.version
        return Rows(
            text_BS=self._text.text_BS,
            start_B=self._text.start_B,
            end_B=self._text.end_B,
            owner_B=self._prompt_B,
            oldest_B=self._oldest_B,
            key_BW=self._key_BW,
            keyed_B=self._keyed_B,
            noted_B=self._noted_B,
            chain_BGS=self._chain_BGS,
            bucket_BGH=self._bucket_BGH,
        )

    def _chain_again(self) -> None:
        """Chains for texts of the present capacity; they fill when next needed."""
        capacity = self._text.text_BS.shape[1]
        self._noted_B = np.zeros(self.rows, np.int32)
        self._chain_BGS = np.zeros((self.rows, len(GRAMS), capacity), np.int32)
        buckets = max(_OWN_BUCKETS, 1 << (capacity - 1).bit_length())
        self._bucket_BGH = np.full((self.rows, len(GRAMS), buckets), NONE, np.int32)


def warm_up() -> None:
    """Compiles every kernel, or loads it from the cache on disk, before it is needed in a hurry."""
    tokens_N = np.ones(4, np.int32)
    best = BestTokens(np.ones((4, 2), np.int32), np.zeros((4, 2), np.float32))
    history = History()
    drafter = NgramDrafter(1, 2, history)
    one_B = np.ones(1, np.int32)
    drafter.observe(0, tokens_N, 0, best)
    drafter.start_row(0, 0, tokens_N)
    draft_BK, length_B = drafter.propose(one_B)
    drafter.foresee(draft_BK, length_B, 4 * one_B)
    drafter.commit(one_B[:, None], one_B)
    history.restore(history.snapshot())
    row_key(0, 0, 0, 0, 0)
