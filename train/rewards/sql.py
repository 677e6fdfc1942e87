"""The reward of text-to-SQL: the query's result on the real database equals the gold query's."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from train.rewards.compare import orders_rows, same_result
from train.rewards.pool import Lost, WorkerPool
from train.rewards.sandbox import Limits, QueryError, Result, Sandbox
from train.tasks.base import Score

CACHED_RESULTS = 1024
CACHED_RESULT_BYTES = 16_384  # in Python some five times as much; Spider's largest is 12,495


@dataclass(frozen=True)
class SqlJob:
    """One response to be scored.

    Attributes:
        database: Absolute path of the SQLite file.
        gold: The gold query.
        text: The response.
    """

    database: str
    gold: str
    text: str


@dataclass(frozen=True)
class Verdict:
    """What the database said about a job.

    Attributes:
        execution_match: The result equals the gold query's.
        runs: The response is one query that runs within the limits.
        gold_failed: The gold query does not, so that nothing could match.
    """

    execution_match: bool
    runs: bool
    gold_failed: bool


class SqlJudge:
    """Worker side: compares a response's result with the gold query's, which it remembers."""

    def __init__(self, limits: Limits) -> None:
        self._sandbox = Sandbox(limits)
        self._gold: OrderedDict[tuple[str, str], Result | None] = OrderedDict()

    def __call__(self, job: SqlJob) -> Verdict:
        """Runs the job's queries; whatever the response does is a verdict, not an exception."""
        gold = self._gold_result(job.database, job.gold)
        try:
            result = self._sandbox.run(job.database, job.text)
        except QueryError:
            return Verdict(execution_match=False, runs=False, gold_failed=gold is None)
        match = gold is not None and same_result(gold, result, ordered=orders_rows(job.gold))
        return Verdict(execution_match=match, runs=True, gold_failed=gold is None)

    def _gold_result(self, database: str, query: str) -> Result | None:
        key = (database, query)
        if key in self._gold:
            self._gold.move_to_end(key)
            return self._gold[key]
        try:
            result = self._sandbox.run(database, query)
        except QueryError:
            result = None
        if result is None or result.size <= CACHED_RESULT_BYTES:
            self._gold[key] = result
        if len(self._gold) > CACHED_RESULTS:
            self._gold.popitem(last=False)
        return result


class SqlReward:
    """Scores responses in worker processes; the most a response can get is 1.

    Args:
        run_credit: Reward of a query that runs but does not match.
        workers: Worker processes; they start with the first call.
        limits: Bounds of every query.
        cpu_seconds: Processor time of one response, gold query included, before the hard kill.
        seconds: The same in wall-clock time; far longer, so that a busy machine changes no score.

    Raises:
        ValueError: `run_credit` lies outside 0 to 1.
    """

    def __init__(
        self,
        *,
        run_credit: float = 0.1,
        workers: int = 2,
        limits: Limits | None = None,
        cpu_seconds: float = 1.0,
        seconds: float = 30.0,
    ) -> None:
        if not 0.0 <= run_credit < 1.0:
            raise ValueError(f"run_credit: found {run_credit}, allowed: 0 or more, below 1")
        limits = limits or Limits()
        self._run_credit = run_credit
        self._longest = limits.query_length + 1
        self._pool = WorkerPool(
            "train.rewards.sql:SqlJudge",
            {"limits": limits},
            workers=workers,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
        )

    def __call__(self, jobs: Sequence[SqlJob]) -> list[Score]:
        """One score a job, in order; equal jobs are run once.

        All are 0 or 1. Parts: `execution_match` and `runs`. Faults: `killed`, where the response
        passed a time limit or took its worker down; `gold_failed`, where the gold query
        does not run.
        """
        cleaned = [SqlJob(job.database, job.gold, self._clean(job.text)) for job in jobs]
        distinct = list(dict.fromkeys(cleaned))
        verdicts = dict(zip(distinct, self._pool.map(distinct), strict=True))
        return [self._score(verdicts[job]) for job in cleaned]

    def _clean(self, text: str) -> str:
        # Cut just past the limit: it still fails there, and no megabyte travels to a worker.
        return text.strip().removesuffix(";").rstrip()[: self._longest]

    def _score(self, verdict: Verdict | Lost) -> Score:
        killed = isinstance(verdict, Lost)
        if killed:
            verdict = Verdict(execution_match=False, runs=False, gold_failed=False)
        credit = self._run_credit if verdict.runs else 0.0
        return Score(
            reward=1.0 if verdict.execution_match else credit,
            parts={
                "execution_match": float(verdict.execution_match),
                "runs": float(verdict.runs),
            },
            faults={
                "killed": float(killed),
                "gold_failed": float(verdict.gold_failed),
            },
        )

    def close(self) -> None:
        """Ends the worker processes."""
        self._pool.close()
