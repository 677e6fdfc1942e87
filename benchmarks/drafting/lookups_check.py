"""Our prompt look-ups beside the engines' own code: the same drafts on every context?

    python -m benchmarks.drafting.lookups_check site=/path/to/site-packages vllm=/path/to/vllm
                                                [contexts=10000] [seed=1] [json=FILE]

`site` is where `torch` and `transformers` are installed; they are no dependency, and are looked for
there alone. `vllm` is the package's folder in an unpacked source distribution: of it one file is
run, `v1/spec_decode/ngram_proposer.py`, which needs Numba and a configuration of five numbers.
Texts are those of `peers_check.py`: small alphabets, and the rollouts of a real model. Each is said
a few tokens at a time, and before each of these both are asked.
"""

import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.drafting.peers_check import Request, random_requests, traced_requests
from benchmarks.options import parse_options
from ngramrl_jax.host.peers import HuggingFaceLookup, VllmLookup
from ngramrl_jax.host.text_drafter import TextDrafter
from ngramrl_jax.types import Int32Array
from train.command import fail_in_one_line

_LONGEST = 2**15  # tokens of a text, far beyond any here
_MOST_SAID = 5  # tokens at a time

Lookup = Callable[[Int32Array], list[int]]


def hugging_face(draft_tokens: int, max_ngram: int, stop_id: int) -> Lookup:
    """The draft of `transformers`, after a text."""
    torch = importlib.import_module("torch")
    generation = importlib.import_module("transformers.generation.candidate_generator")
    generator = generation.PromptLookupCandidateGenerator(
        eos_token_id=None if stop_id < 0 else torch.tensor([stop_id]),
        num_output_tokens=draft_tokens,
        max_matching_ngram_size=max_ngram,
        max_length=_LONGEST,
    )

    def draft(text_S: Int32Array) -> list[int]:
        with_draft, _ = generator.get_candidates(torch.from_numpy(text_S.astype(np.int64))[None])
        return with_draft[0, text_S.size :].tolist()

    return draft


def vllm_ngram(package: Path, draft_tokens: int, min_ngram: int, max_ngram: int) -> Lookup:
    """The draft of vLLM's method `ngram`, after a text."""
    proposer = _proposer_class(package)(
        SimpleNamespace(
            speculative_config=SimpleNamespace(
                prompt_lookup_min=min_ngram,
                prompt_lookup_max=max_ngram,
                num_speculative_tokens=draft_tokens,
            ),
            model_config=SimpleNamespace(max_model_len=_LONGEST),
            scheduler_config=SimpleNamespace(max_num_seqs=1024),
            parallel_config=SimpleNamespace(tensor_parallel_size=1),
        )
    )
    buffer_1S = np.zeros((1, _LONGEST), np.int32)

    def draft(text_S: Int32Array) -> list[int]:
        buffer_1S[0, : text_S.size] = text_S
        size_1 = np.array([text_S.size], np.int32)
        return proposer.propose(draft_tokens, [[0]], size_1, buffer_1S)[0]

    return draft


def _proposer_class(package: Path) -> Any:
    """The class of vLLM, from its file; of the rest only a name in an annotation is needed."""
    config = ModuleType("vllm.config")
    config.VllmConfig = object  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules.update({"vllm": ModuleType("vllm"), "vllm.config": config})
    path = package / "v1" / "spec_decode" / "ngram_proposer.py"
    spec = importlib.util.spec_from_file_location("ngram_proposer", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ValueError(f"vllm: found no {path}, allowed: the folder of vLLM's package")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.NgramProposer


def compare(
    ours: TextDrafter,
    theirs: Lookup,
    requests: Iterator[Request],
    contexts: int,
    rng: np.random.Generator,
) -> dict[str, int]:
    """Asks both after every piece of text until that many contexts have been compared."""
    count = {"contexts": 0, "with_draft": 0, "drafted_tokens": 0, "different": 0}
    limit_1 = np.array([ours.draft_tokens], np.int32)
    while count["contexts"] < contexts:
        request = next(requests)
        ours.start_row(0, request.prompt_id, request.prompt_P)
        said = 0
        while said < request.response_N.size and count["contexts"] < contexts:
            draft_1K, length_1 = ours.propose(limit_1)
            mine = draft_1K[0, : length_1[0]].tolist()
            other = theirs(np.concatenate([request.prompt_P, request.response_N[:said]]))
            count["contexts"] += 1
            count["with_draft"] += bool(other)
            count["drafted_tokens"] += len(other)
            count["different"] += mine != other
            new_1T = request.response_N[None, said : said + rng.integers(1, _MOST_SAID + 1)]
            ours.commit(new_1T, np.array([new_1T.size], np.int32))
            said += new_1T.size
    return count


def pairs(site: str, package: str) -> dict[str, tuple[TextDrafter, Lookup]]:
    """Ours and theirs by setting, of the engines that are there; the published defaults first."""
    found: dict[str, tuple[TextDrafter, Lookup]] = {}
    if site:
        sys.path.append(site)  # behind our own packages, which keep their versions
        for draft_tokens, ngram, stop_id in ((10, 2, -1), (10, 2, 1), (16, 4, -1), (3, 1, 2)):
            ours = HuggingFaceLookup(1, draft_tokens, max_ngram=ngram, stop_id=stop_id)
            theirs = hugging_face(draft_tokens, ngram, stop_id)
            found[f"transformers, {draft_tokens} after {ngram}, stop {stop_id}"] = ours, theirs
    if package:
        for draft_tokens, low, high in ((5, 5, 5), (16, 5, 5), (4, 2, 3), (16, 1, 4)):
            ours = VllmLookup(1, draft_tokens, min_ngram=low, max_ngram=high)
            theirs = vllm_ngram(Path(package), draft_tokens, low, high)
            found[f"vLLM, {draft_tokens} after {low} to {high}"] = ours, theirs
    if not found:
        raise ValueError("site, vllm: found neither, allowed: one or both")
    return found


def main(arguments: list[str]) -> int:
    """Compares every setting on both kinds of text; 1 where any draft differs."""
    defaults = {"site": "", "vllm": "", "contexts": 10_000, "seed": 1, "json": ""}
    options = parse_options(arguments, defaults)
    rows: list[dict[str, Any]] = []
    for name, (ours, theirs) in pairs(options["site"], options["vllm"]).items():
        for texts, make in {"random": random_requests, "traces": traced_requests}.items():
            rng = np.random.default_rng([options["seed"], len(rows)])
            count = compare(ours, theirs, make(rng), options["contexts"], rng)
            rows.append({"setting": name, "texts": texts, **count})
            print(
                f"{texts:7} {name:33}: {count['contexts']} contexts, {count['with_draft']} with a "
                f"draft, {count['drafted_tokens']} tokens, {count['different']} differ",
                flush=True,
            )
    if options["json"]:
        Path(options["json"]).write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["different"] for row in rows))


if __name__ == "__main__":
    with fail_in_one_line():
        sys.exit(main(sys.argv[1:]))
