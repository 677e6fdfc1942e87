"""Our SuffixDecoding beside the real library: the same drafts on every context?

    PYTHONPATH=/path/to/ArcticInference python -m benchmarks.drafting.peers_check contexts=10000

The library is no dependency. Its suffix tree needs neither torch nor vLLM; to build it alone for
this Python: unpack the source distribution of `arctic-inference`, install `nanobind` and `cmake`,
run cmake in `csrc/suffix_decoding` with `-DPython_EXECUTABLE=...`, and copy `_C*.so` beside
`arctic_inference/suffix_decoding/cache.py`. Requests run side by side, say what their text says at
random speed, and both are asked before every round: texts over small alphabets, in which most
counts tie, and the rollouts of a real model. Small caches make requests go while they run.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from benchmarks.options import parse_options
from ngramrl_jax.host.peers import ARCTIC_RULE, VLLM_RULE, SuffixDecodingDrafter, SuffixRule
from ngramrl_jax.types import Int32Array

_TRACES = Path("../shared/data/traces/qwen2.5_coder_0.5b_spider.jsonl")
_ROWS, _BUDGET = 8, 16
_RULES = {
    "ArcticInference's defaults": ARCTIC_RULE,
    "vLLM's defaults": VLLM_RULE,
    "factor 4": SuffixRule(depth=64, factor=4.0, max_tokens=16),
    "depth 4, offset 0.6": SuffixRule(depth=4, factor=1.4, offset=0.6, min_prob=0.3),
}


@dataclass(frozen=True)
class Request:
    """What one request is asked and what it will say."""

    prompt_id: int
    prompt_P: Int32Array
    response_N: Int32Array


@dataclass
class Count:
    """What has been compared, and seconds spent by ours and by theirs."""

    contexts: int = 0
    drafted: int = 0
    different: int = 0
    draft_seconds: tuple[float, float] = (0.0, 0.0)
    insert_seconds: tuple[float, float] = (0.0, 0.0)
    inserted: int = 0


class Theirs:
    """The real library, driven as vLLM drives it."""

    def __init__(self, rule: SuffixRule, cached_requests: int) -> None:
        from arctic_inference.suffix_decoding import (  # pyright: ignore[reportMissingImports]
            SuffixDecodingCache,
        )

        self._rule = rule
        self._cache = SuffixDecodingCache(rule.depth, cached_requests)
        self._texts: dict[int, list[int]] = {}

    def start(self, request_id: int, prompt_P: Int32Array) -> None:
        """A request begins."""
        self._texts[request_id] = prompt_P.tolist()
        self._cache.start_request(request_id, prompt_P)

    def say(self, request_id: int, tokens_T: Int32Array) -> None:
        """The request says some more."""
        self._texts[request_id] += tokens_T.tolist()
        self._cache.add_active_response(request_id, tokens_T)

    def draft(self, request_id: int, limit: int) -> tuple[list[int], int]:
        """The draft and the length of its match."""
        context = np.array(self._texts[request_id][-self._rule.depth :], np.int32)
        draft = self._cache.speculate(
            request_id,
            context,
            max_spec_tokens=min(limit, self._rule.max_tokens),
            max_spec_factor=self._rule.factor,
            max_spec_offset=self._rule.offset,
            min_token_prob=self._rule.min_prob,
        )
        return list(draft.token_ids), draft.match_len

    def stop(self, request_id: int) -> None:
        """The request is done."""
        del self._texts[request_id]
        self._cache.stop_request(request_id)


def random_requests(rng: np.random.Generator) -> Iterator[Request]:
    """Endless texts over 2 to 12 tokens, half of them earlier ones with changes."""
    seen: list[Int32Array] = []
    while True:
        letters = int(rng.integers(2, 13))
        prompt_P = rng.integers(0, letters, rng.integers(1, 60)).astype(np.int32)
        response_N = rng.integers(0, letters, rng.integers(1, 120)).astype(np.int32)
        if seen and rng.random() < 0.5:
            response_N = seen[rng.integers(len(seen))].copy()
            response_N[rng.random(response_N.size) < 0.05] = rng.integers(letters)
        seen = [*seen[-50:], response_N]
        yield Request(0, prompt_P, response_N)


def traced_requests(rng: np.random.Generator) -> Iterator[Request]:
    """The recorded rollouts in random order, over and over."""
    lines = [json.loads(line) for line in _TRACES.read_text().splitlines()]
    requests = [
        Request(prompt_id, np.array(line["prompt_ids"], np.int32), np.array(rollout, np.int32))
        for prompt_id, line in enumerate(lines)
        for rollout in line["rollouts"]
        if rollout
    ]
    while True:
        for index in rng.permutation(len(requests)):
            yield requests[index]


def compare(
    requests: Iterator[Request],
    rule: SuffixRule,
    cached_requests: int,
    contexts: int,
    rng: np.random.Generator,
) -> Count:
    """Runs requests through both until that many contexts have been compared."""
    ours = SuffixDecodingDrafter(_ROWS, _BUDGET, rule, cached_requests)
    theirs = Theirs(rule, cached_requests)
    count, running, left, serial = Count(), {}, [np.zeros(0, np.int32)] * _ROWS, 0
    while count.contexts < contexts:
        for row in range(_ROWS):
            if left[row].size == 0:
                if row in running:
                    ours.finish_row(row)
                    theirs.stop(running[row])
                request, serial = next(requests), serial + 1
                running[row], left[row] = serial, request.response_N
                ours.start_row(row, request.prompt_id, request.prompt_P)
                theirs.start(serial, request.prompt_P)
        limit_B = rng.integers(0, _BUDGET + 1, _ROWS).astype(np.int32)
        limit_B[rng.random(_ROWS) < 0.7] = _BUDGET
        begun = perf_counter()
        draft_BK, length_B = ours.propose(limit_B)
        proposed = perf_counter()
        other = [theirs.draft(running[row], int(limit_B[row])) for row in range(_ROWS)]
        ended = perf_counter()
        for row, (tokens, match) in enumerate(other):
            mine = draft_BK[row, : length_B[row]].tolist()
            # With nothing wanted ours looks nothing up, so that there is no match to compare.
            same = mine == tokens and (limit_B[row] == 0 or match == ours.match_length_B[row])
            count.different += not same
            count.contexts += 1
            count.drafted += len(tokens)
        count.draft_seconds = _sum(count.draft_seconds, proposed - begun, ended - proposed)
        count_B = np.minimum(rng.integers(1, 6, _ROWS), [rest.size for rest in left])
        tokens_BT = np.zeros((_ROWS, 5), np.int32)
        for row in range(_ROWS):
            tokens_BT[row, : count_B[row]] = left[row][: count_B[row]]
            left[row] = left[row][count_B[row] :]
        begun = perf_counter()
        ours.commit(tokens_BT, count_B.astype(np.int32))
        committed = perf_counter()
        for row in range(_ROWS):
            theirs.say(running[row], tokens_BT[row, : count_B[row]])
        ended = perf_counter()
        count.insert_seconds = _sum(count.insert_seconds, committed - begun, ended - committed)
        count.inserted += int(count_B.sum())
    return count


def _sum(seconds: tuple[float, float], ours: float, theirs: float) -> tuple[float, float]:
    return seconds[0] + ours, seconds[1] + theirs


def main(arguments: list[str]) -> int:
    """Compares under every rule; 1 where any draft differs."""
    options = parse_options(arguments, {"contexts": 10_000, "seed": 1, "json": ""})
    rows, seed = [], options["seed"]
    for texts, make in {"random": random_requests, "traces": traced_requests}.items():
        for name, rule in _RULES.items():
            for cached in (3, 40, 10_000):
                rng = np.random.default_rng([seed, len(rows)])
                count = compare(make(rng), rule, cached, options["contexts"], rng)
                drafting = [1e6 * s / count.contexts for s in count.draft_seconds]
                inserting = [1e6 * s / count.inserted for s in count.insert_seconds]
                row = {
                    "texts": texts,
                    "rule": name,
                    "cached_requests": cached,
                    "contexts": count.contexts,
                    "drafted_tokens": count.drafted,
                    "different": count.different,
                    "draft_us_ours": drafting[0],
                    "draft_us_theirs": drafting[1],
                    "token_us_ours": inserting[0],
                    "token_us_theirs": inserting[1],
                }
                rows.append(row)
                print(
                    f"{texts:7} {name:27} cache {cached:6}: {count.contexts} contexts, "
                    f"{count.drafted} tokens drafted, {count.different} differ; us a draft "
                    f"{drafting[0]:.1f} (theirs {drafting[1]:.1f}), us a token said "
                    f"{inserting[0]:.1f} ({inserting[1]:.1f})"
                )
    if options["json"]:
        Path(options["json"]).write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
