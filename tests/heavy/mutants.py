"""`make mutants`: small faults are put into a module, one at a time; its tests must notice each.

A mutant that survives is either as good as the original or a gap in the tests. survivors.md lists
the former with the reason, by source line and change, so that lines may move; any other is printed
as a row for that table, and makes the exit status 1.

The mutated module never touches the disk: a process that has loaded the libraries, but has no
device yet, forks, and an import hook in the child gives the module's changed code to pytest. A
child takes one mutant after the other, as far as it gets: one that crashes (a wrong index in
compiled code may end in SIGSEGV, which the kernel logs), or goes on for too long, is killed like
one that fails a test, and the next child goes on behind it. What a mutant leaves behind could kill
the next: the last thing that a child runs is the module as it is, and where that fails, each mutant
of the child gets a child of its own. The libraries for this job put their mutants behind functions
of their own or into a copy of the tree, and fork after JAX has started its threads; neither works
with `jit`, custom derivatives and Numba, nor is an import of JAX for every mutant quick.

Usage: python tests/heavy/mutants.py [MODULE ...] [--at-most N] [--line TEXT]
"""

import argparse
import importlib
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType

from mutation import STATEMENTS_ALONE, mutants, row

VERIFY, ENGINE = "tests/ngramrl_jax/verify", "tests/ngramrl_jax/rollout"
LOSSES = "tests/train/test_objectives"
VERIFIERS = [f"{VERIFY}/test_{name}.py" for name in ("verdicts", "known_faults")]


def _host(*names: str) -> list[str]:
    return [f"tests/ngramrl_jax/host/test_{name}.py" for name in names]


# The quickest to notice come first; what is named alone runs before, or instead of, its file.
TESTS = {
    "ngramrl_jax/verify/adjust.py": [f"{VERIFY}/test_adjust.py", *VERIFIERS],
    "ngramrl_jax/verify/coupled.py": VERIFIERS,
    "ngramrl_jax/verify/forced.py": [
        f"{ENGINE}/test_forced.py::test_sampling_is_still_computed",
        f"{ENGINE}/test_forced.py",
    ],
    "ngramrl_jax/verify/keyed.py": [f"{VERIFY}/test_keyed.py", *VERIFIERS],
    "ngramrl_jax/verify/oracle.py": [
        f"{VERIFY}/test_oracle.py",
        f"{VERIFY}/test_adjust.py::test_equals_the_oracle",
        f"{VERIFY}/test_tree.py::test_the_walk_is_the_oracles",
        *VERIFIERS,
    ],
    "ngramrl_jax/verify/rejection.py": VERIFIERS,
    "ngramrl_jax/verify/threefry.py": [
        f"{VERIFY}/test_keyed.py::test_the_words_are_those_of_jax[shape1]",
        f"{VERIFY}/test_keyed.py",
    ],
    "ngramrl_jax/verify/tree.py": [
        f"{VERIFY}/test_tree.py::test_{name}"
        for name in (
            "the_walk_is_the_oracles",
            "the_key_of_a_depth_is_that_of_its_position",
            "ancestors_and_depths_are_those_of_walking_up",
            "the_last_of_a_chain_sees_all",
            "a_chain_is_a_tree",
        )
    ],
    "ngramrl_jax/verify/verdict.py": VERIFIERS,
    "train/correction.py": [f"{LOSSES}_by_sequence.py"],
    "train/objectives.py": [f"{LOSSES}.py", f"{LOSSES}_by_sequence.py"],
    "ngramrl_jax/host/draft.py": _host("ngram", "ngram_rows", "noise_aware"),
    "ngramrl_jax/host/history.py": _host("history", "snapshot"),
    "ngramrl_jax/host/laws.py": _host("laws", "snapshot"),
    "ngramrl_jax/host/log.py": _host("log", "search", "snapshot"),
    "ngramrl_jax/host/matches.py": _host("ngram", "ngram_rows", "noise_aware"),
    "ngramrl_jax/host/ngram.py": _host(
        "ngram", "ngram_rows", "foresee", "ngram_process", "warm_up"
    ),
    "ngramrl_jax/host/row_text.py": _host("ngram", "ngram_rows"),
    "ngramrl_jax/host/search.py": _host("search", "ngram", "ngram_rows"),
    "ngramrl_jax/host/snapshot.py": _host("snapshot"),
    "ngramrl_jax/host/text_drafter.py": _host("ngram", "ngram_rows", "peers_prompt_lookup"),
}
# Modules that no kernel needs.
WARM = [f"ngramrl_jax/host/{name}.py" for name in ("history", "ngram", "snapshot", "text_drafter")]
# Statistical tests stay out: what the quick ones do not notice is to be explained.
PYTEST = ["-x", "-q", "-m", "not stat", "-p", "no:cacheprovider", "--hypothesis-profile=mutants"]
PYTEST += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # Hypothesis is there already
PYTEST += ["-W", "ignore:overflow encountered"]  # hashes, where kernels run as plain Python

A_CHILD = 20  # mutants, so that what they compile does not fill the memory
PASSED = b"+"
KEPT: set[str] = set()  # modules that a child's mutants share
EXPLAINED = Path(__file__).with_name("survivors.md")


class MutatedImport(SourceFileLoader):
    """Finds one module and gives it the code of a mutant."""

    def __init__(self, module: str, code: CodeType) -> None:
        super().__init__(module.removesuffix(".py").replace("/", "."), module)
        self.code = code

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        wanted = name == self.name
        return spec_from_file_location(name, self.path, loader=self) if wanted else None

    def get_code(self, fullname: str) -> CodeType:
        return self.code


def load_kernels() -> None:
    """Loads what is compiled once for all mutants: most of what their tests would wait for.

    The modules that hold no kernels are not kept, so that each mutant's tests import their own.
    """
    importlib.import_module("ngramrl_jax.host.ngram").warm_up()
    for name, loaded in list(sys.modules.items()):
        path = loaded.__file__ if name.startswith("ngramrl_jax") else None
        if path and "@kernel" in Path(path).read_text():
            KEPT.add(name)


def verdicts(module: str, codes: list[CodeType], limit: int) -> Iterator[bool]:
    """Whether the module's tests pass with each code, of at most `limit` CPU seconds each."""
    for first in range(0, len(codes), A_CHILD):
        batch = codes[first : first + A_CHILD]
        answers = in_a_child(module, [*batch, original(module)], limit)
        died = len(answers) - 1
        if answers[-1]:
            yield from answers[:-1]
        elif died < len(batch):
            yield from verdicts(module, batch[:died], limit)
            yield False
            yield from verdicts(module, batch[died + 1 :], limit)
        else:
            yield from (in_a_child(module, [code], limit)[0] for code in batch)


def in_a_child(module: str, codes: list[CodeType], limit: int) -> list[bool]:
    """As `verdicts`, but only up to the first code that ends the child, which does not pass."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            serve(module, codes, limit, writer)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answers = [answer == PASSED[0] for answer in pipe.read()]
    os.waitpid(child, 0)
    return answers if len(answers) == len(codes) else [*answers, False]


def serve(module: str, codes: list[CodeType], limit: int, writer: int) -> None:
    """Body of a child: runs the tests with each code and writes a byte for each."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    hypothesis = importlib.import_module("hypothesis")
    hypothesis.settings.register_profile(
        "mutants",
        hypothesis.settings.get_profile("ci"),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a failure will do
    )
    pytest = importlib.import_module("pytest")
    for code in codes:
        # The processor's seconds, so that a busy machine kills no mutant; an hour for one that
        # waits. Both signals end the child.
        signal.setitimer(signal.ITIMER_PROF, limit)
        signal.alarm(3600)
        forget_ours()
        sys.meta_path.insert(0, MutatedImport(module, code))
        passed = pytest.main([*PYTEST, *TESTS[module]]) == 0
        del sys.meta_path[0]
        os.write(writer, PASSED if passed else b"-")


def forget_ours() -> None:
    """Forgets this repository's modules, tests among them, but for those that are kept."""
    here = os.path.join(os.getcwd(), "")
    for name, loaded in list(sys.modules.items()):
        path = os.path.abspath(getattr(loaded, "__file__", None) or "")
        ours = path.startswith(here) and not path.startswith(f"{here}.venv")
        if ours and name not in {"__main__", *KEPT}:
            del sys.modules[name]


def original(module: str) -> CodeType:
    """The module as it is."""
    return compile(Path(module).read_text(), module, "exec")


def explained(module: str) -> Counter[str]:
    """The rows of a module in survivors.md without their reasons, and how often each stands there.

    Raises:
        ValueError: A row has no reason.
    """
    rows: Counter[str] = Counter()
    title = ""
    for line in EXPLAINED.read_text().splitlines():
        if line.startswith("## "):
            title = line.removeprefix("## ").strip()
        elif line.startswith("| `") and title == module:
            known, _, reason = line.removesuffix("|").rpartition("| ")
            if not reason.strip():
                raise ValueError(f"{EXPLAINED.name}: found {line}, allowed: rows with a reason")
            rows[known] += 1
    return rows


def examine(module: str, at_most: int, text: str) -> bool:
    """Runs a module's mutants, or every so many of them; whether all that survive are explained."""
    source = Path(module).read_text()
    start = time.monotonic()
    if in_a_child(module, [original(module)], limit=3600) != [True]:
        raise SystemExit(f"{module}: its tests fail without a mutant")
    for name, reason in STATEMENTS_ALONE.items():
        if f"def {name}(" in source:
            print(f"  {module}: of {name} the statements alone change: {reason}")
    limit = 5 + 2 * int(os.times().children_user)
    lines, every = source.splitlines(), mutants(source, module)
    found = [mutant for mutant in every if text in lines[mutant.line - 1]]
    chosen = found[:: max(1, -(-len(found) // at_most))]
    known = explained(module)
    survived = unexplained = 0
    passed = verdicts(module, [mutant.code for mutant in chosen], limit)
    for mutant in (mutant for mutant, unnoticed in zip(chosen, passed, strict=True) if unnoticed):
        survived += 1
        if known[row(source, mutant)] > 0:
            known[row(source, mutant)] -= 1
            continue
        unexplained += 1
        print(f"  survived, {module}:{mutant.line}: {row(source, mutant)}|", flush=True)
    if len(chosen) == len(every):
        for stale in known.elements():
            print(f"  {EXPLAINED.name} explains what is killed: {stale}|")
    print(
        f"{module}: {len(found)} mutants, {len(chosen)} run, {len(chosen) - survived} killed, "
        f"{survived - unexplained} explained, {unexplained} not, {time.monotonic() - start:.0f} s",
        flush=True,
    )
    return not unexplained


def main() -> None:
    """Examines the modules given, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="all where none is given")
    parser.add_argument("--at-most", type=int, default=400, help="mutants for each module")
    parser.add_argument("--line", default="", help="those alone whose source line has this text")
    arguments = parser.parse_args()
    if unknown := set(arguments.modules) - set(TESTS):
        parser.error(f"MODULE: found {unknown.pop()}, allowed: {', '.join(TESTS)}")
    failed = False
    for module in arguments.modules or TESTS:
        # Numba's cache knows a kernel by its file, which a mutant does not change.
        os.environ["NUMBA_DISABLE_JIT"] = str(int("@kernel" in Path(module).read_text()))
        if not os.fork():
            sys.path.insert(0, os.getcwd())
            for library in ("jax", "numba", "pytest", "hypothesis"):
                importlib.import_module(library)
            if module in WARM:
                load_kernels()
            sys.exit(not examine(module, arguments.at_most, arguments.line))
        failed |= os.wait()[1] != 0
    sys.exit(failed)


if __name__ == "__main__":
    os.environ["JAX_PLATFORMS"] = "cpu"
    # Whatever a mutant leaves as it was comes from the cache.
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    sys.dont_write_bytecode = False  # so that pytest rewrites the tests once, not for every mutant
    # Compiling is most of the work, and what comes out runs once.
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"
    main()
