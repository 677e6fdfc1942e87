"""What hostile responses do to the text-to-SQL reward: speed, leaks, harm: `make hostile`.

Three arms score questions of the embedded data, whose right scores are known: without hostile
responses, with some mixed in, and with the same mixed in while other processes keep the machine
busy. Every hostile response must get 0, every other one what it is due, and processes, descriptors,
memory and files must be afterwards as they were before. Linux only: it looks into `/proc`.

    python benchmarks/rewards/hostile_sql.py [calls=10000] [hostile_per_mille=10] [workers=2]
                                             [json=FILE]
"""

import hashlib
import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

sys.path[0] = str(Path(__file__).resolve().parents[2])

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from benchmarks.rewards.hostile_queries import HOSTILE  # noqa: E402
from train.command import fail_in_one_line  # noqa: E402
from train.rewards.sql import SqlJob, SqlReward  # noqa: E402

DATA = Path(__file__).resolve().parents[2] / "data" / "text2sql"
DEFAULTS = {"calls": 10_000, "hostile_per_mille": 10, "workers": 2, "json": ""}
BATCH = 128  # responses of a call, as in a training step
WARM_UP = 0.2  # share of the calls after which memory is first looked at
MEGABYTE = 2**20


@dataclass(frozen=True)
class Case:
    """A response and the reward that it is due."""

    job: SqlJob
    reward: float


@dataclass(frozen=True)
class Footprint:
    """What this process and its children hold.

    Attributes:
        processes: Children, those that have ended but were not waited for among them.
        descriptors: Open ones of this process.
        worker_descriptors: Most open ones of a child.
        resident_mb: Memory of this process.
        worker_peak_mb: Most memory that a living child ever had.
    """

    processes: int
    descriptors: int
    worker_descriptors: int
    resident_mb: float
    worker_peak_mb: float


@dataclass(frozen=True)
class Outcome:
    """One arm.

    Attributes:
        calls: Responses scored.
        calls_per_second: Wall clock, hostile ones included.
        calls_per_cpu_second: By the processor time of the workers, their restarts included.
        slowest_hostile_s: Longest wall-clock time of a hostile response scored by itself.
        slowest_hostile_cpu_s: The same in processor time.
        killed: Responses that took their worker with them.
        wrong: Responses that did not get what they were due.
        warm: Held after the first part of the calls.
        most: The most that was held after any batch.
        last: Held at the end.
    """

    calls: int
    calls_per_second: float
    calls_per_cpu_second: float
    slowest_hostile_s: float
    slowest_hostile_cpu_s: float
    killed: int
    wrong: int
    warm: Footprint
    most: Footprint
    last: Footprint

    @property
    def grown_mb(self) -> float:
        """What this process gained in memory after the first part of the calls."""
        return self.last.resident_mb - self.warm.resident_mb


def cases(calls: int, hostile_per_mille: int) -> list[Case]:
    """Responses in a fixed order; no two are equal, so that none is scored for free."""
    examples = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()]
    hostile = list(HOSTILE.values())
    made: list[Case] = []
    sent = 0
    for i in range(calls):
        example = examples[i % len(examples)]
        database = str(DATA / "databases" / f"{example['database']}.sqlite")
        right = example["query"]
        if (i + 1) * hostile_per_mille // 1000 > i * hostile_per_mille // 1000:
            made.append(Case(SqlJob(database, right, hostile[sent % len(hostile)]), 0.0))
            sent += 1
        elif i % 3:
            made.append(Case(SqlJob(database, right, f"{right} -- {i}"), 1.0))
        else:
            made.append(Case(SqlJob(database, right, f"SELECT no_such_column -- {i}"), 0.0))
    return made


def measure(cases: Sequence[Case], *, workers: int, alone: Sequence[str] = ()) -> Outcome:
    """Scores the cases in batches, then the texts of `alone` one by one."""
    others = frozenset(_children())
    seen: list[Footprint] = []
    killed = wrong = 0
    slowest = slowest_cpu = seconds = 0.0
    with closing(SqlReward(workers=workers)) as reward:
        reward([cases[0].job])  # the workers' start is not timed
        cpu_before = workers_cpu_seconds(others)
        for start in range(0, len(cases), BATCH):
            batch = cases[start : start + BATCH]
            since = perf_counter()
            scores = reward([case.job for case in batch])
            seconds += perf_counter() - since
            killed += sum(int(score.faults["killed"]) for score in scores)
            wrong += sum(s.reward != case.reward for s, case in zip(scores, batch, strict=True))
            seen.append(footprint(others))
        last = footprint(others)
        cpu_seconds = workers_cpu_seconds(others) - cpu_before
        for text in alone:
            since, cpu_since = perf_counter(), workers_cpu_seconds(others)
            (score,) = reward([SqlJob(cases[0].job.database, cases[0].job.gold, text)])
            slowest = max(slowest, perf_counter() - since)
            slowest_cpu = max(slowest_cpu, workers_cpu_seconds(others) - cpu_since)
            wrong += score.reward != 0.0
    return Outcome(
        calls=len(cases),
        calls_per_second=len(cases) / seconds,
        calls_per_cpu_second=len(cases) / cpu_seconds,
        slowest_hostile_s=slowest,
        slowest_hostile_cpu_s=slowest_cpu,
        killed=killed,
        wrong=wrong,
        warm=seen[int(WARM_UP * len(seen))],
        most=Footprint(*(max(column) for column in zip(*map(_values, seen), strict=True))),
        last=last,
    )


def footprint(others: frozenset[int] = frozenset()) -> Footprint:
    """What is held now; the children `others` are left out."""
    children = [pid for pid in _children() if pid not in others]
    peaks = [_status(pid, "VmHWM") for pid in children]
    return Footprint(
        processes=len(children),
        descriptors=len(os.listdir("/proc/self/fd")),
        worker_descriptors=max((_descriptors(pid) for pid in children), default=0),
        resident_mb=_status(os.getpid(), "VmRSS"),
        worker_peak_mb=max(peaks, default=0.0),
    )


def workers_cpu_seconds(others: frozenset[int] = frozenset()) -> float:
    """Processor time of the children so far, ended ones included; `others` are left out."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    ticks = sum(_cpu_ticks(pid) for pid in _children() if pid not in others)
    return ended.ru_utime + ended.ru_stime + ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def busy_machine(processes: int) -> Iterator[None]:
    """So many other processes want a core."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def fingerprint(folder: Path) -> dict[str, str]:
    """Every file under a folder with what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _values(footprint: Footprint) -> tuple[float, ...]:
    return tuple(asdict(footprint).values())


def _children() -> Iterator[int]:
    parent = str(os.getpid())
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _stat(int(entry.name))[1] == parent:
            yield int(entry.name)


def _cpu_ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[11:13]))


def _stat(pid: int) -> list[str]:
    """Fields of `/proc/<pid>/stat` from the state on; all 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ["0"] * 13
    return text.rpartition(")")[2].split()  # the name before the bracket may hold anything


def _status(pid: int, name: str) -> float:
    """A size out of `/proc/<pid>/status`, in MB; 0 for a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    sizes = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(sizes[0]) * 1024 / MEGABYTE if sizes else 0.0


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def show(outcomes: dict[str, Outcome]) -> None:
    """The table."""
    table = Table(title="hostile responses and the text-to-SQL reward")
    table.add_column("")
    for name in outcomes:
        table.add_column(name, justify="right")
    rows = {
        "calls": lambda o: f"{o.calls}",
        "calls a second": lambda o: f"{o.calls_per_second:.0f}",
        "calls a second of processor time": lambda o: f"{o.calls_per_cpu_second:.0f}",
        "not scored as due": lambda o: f"{o.wrong}",
        "ended by the hard kill": lambda o: f"{o.killed}",
        "slowest hostile response": lambda o: f"{o.slowest_hostile_s:.2f} s",
        "the same, processor time": lambda o: f"{o.slowest_hostile_cpu_s:.2f} s",
        "worker processes, most": lambda o: f"{o.most.processes}",
        "descriptors, warm and last": lambda o: f"{o.warm.descriptors}, {o.last.descriptors}",
        "descriptors of a worker, most": lambda o: f"{o.most.worker_descriptors}",
        "memory, warm and last": lambda o: f"{o.warm.resident_mb:.0f}, {o.last.resident_mb:.0f} MB",
        "memory of a worker, most": lambda o: f"{o.most.worker_peak_mb:.0f} MB",
    }
    for label, of in rows.items():
        table.add_row(label, *map(of, outcomes.values()))
    Console(width=110).print(table)


def main() -> None:
    """Measures and prints; a harm that was done is an error."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    calls, workers = options["calls"], options["workers"]
    clean, mixed = cases(calls, 0), cases(calls, options["hostile_per_mille"])
    files = fingerprint(DATA)
    idle = footprint()
    outcomes = {"clean": measure(clean, workers=workers)}
    outcomes["hostile"] = measure(mixed, workers=workers, alone=list(HOSTILE.values()))
    with busy_machine(2 * (os.cpu_count() or 1)):
        outcomes["hostile, busy machine"] = measure(mixed, workers=workers)
    show(outcomes)
    if options["json"]:
        record = {name: asdict(outcome) for name, outcome in outcomes.items()}
        Path(options["json"]).write_text(json.dumps(record, indent=1) + "\n")
    left = footprint()
    harms = {
        "a response was not scored as due": any(o.wrong for o in outcomes.values()),
        "a file changed": fingerprint(DATA) != files,
        "a process was left": left.processes != idle.processes,
        "a descriptor was left": left.descriptors != idle.descriptors,
    }
    if done := [harm for harm, happened in harms.items() if happened]:
        sys.exit(f"error: {'; '.join(done)}")


if __name__ == "__main__":
    with fail_in_one_line():
        main()
