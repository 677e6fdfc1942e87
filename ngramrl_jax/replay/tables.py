"""What replay finds, as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from ngramrl_jax.replay.report import Report

_POSITIONS = (1, 2, 4, 8, 16)


def show(report: Report, console: Console) -> None:
    """One trace: what it holds, then a line a drafter."""
    console.print(_about(report["trace"]))
    draft_tokens = report["draft_tokens"]
    positions = [position for position in _POSITIONS if position <= draft_tokens]
    table = Table(title=f"tokens per forward and what they cost, K = {draft_tokens}")
    table.add_column("drafter")
    headings = (
        "all", "cold", "warm", "drafted", "accepted", "rate",
        *(f"at {position}" for position in positions), "µs/proposal", "B/token",
    )  # fmt: skip
    for heading in headings:
        table.add_column(heading, justify="right")
    for name, found in report["drafters"].items():
        forward, by_position = found["tokens_per_forward"], found["acceptance_by_position"]
        table.add_row(
            name,
            *(_figure(forward[when], 2) for when in ("all", "cold", "warm")),
            _figure(found["drafted_per_round"], 2),
            _figure(found["accepted_per_round"], 2),
            _figure(found["acceptance_rate"], 2),
            *(_figure(by_position[position - 1], 2) for position in positions),
            _figure(found["us_per_proposal"], 1),
            _figure(found["bytes_per_token"], 0),
        )
    console.print(table)


def show_comparison(
    comparison: Mapping[str, Any], reports: Sequence[Report], console: Console
) -> None:
    """How many times the tokens per forward of each other drafter the first one keeps."""
    of_runs = any(report["trace"]["warm_steps"] for report in reports)
    pairs = "warm steps" if of_runs else "prompts"
    where = "one trace" if len(reports) == 1 else f"{len(reports)} traces"
    for other, found in comparison["over"].items():
        interval = found["interval"]
        if interval:
            between = f" [{interval[0]:.2f}, {interval[1]:.2f}]"
            how = f"{pairs} of {where} in pairs, 95 %"
        else:
            between, how = "", "one pair alone, no interval"
        console.print(
            f"{comparison['of']} over {other}: {found['ratio']:.2f}{between} ({how})",
            highlight=False,
        )


def _about(trace: Mapping[str, Any]) -> str:
    numbers: Sequence[int] = trace["step_numbers"]
    coverage = trace["coverage"]
    lines = [f"{trace['path']}: {trace['rollouts']} rollouts, {trace['tokens']} tokens"]
    if trace["leave_one_out"]:
        lines[0] += f" of {len(numbers)} prompts; the history of each is the rest of its group"
    else:
        lines[0] += f", steps {numbers[0]} to {numbers[-1]}"
        if numbers[0] > 0:
            lines.append("its beginning is gone: drafters start without the history they had")
    if trace["idle_rounds"]:
        lines.append(
            f"recorded with rounds sent ahead (prefetch): rows idled {trace['idle_rounds']} rounds "
            "before their first one; replay refills at once, so siblings may see other history"
        )
    said = f"reward {trace['reward_mean']:.3f}"
    if trace["entropy"] is not None:
        said += f", entropy {trace['entropy']:.3f} nats a token"
    if trace["entropy_warm"] is not None:
        said += f" ({trace['entropy_warm']:.3f} warm)"
    lines.append(said)
    if coverage["run_quartiles"]:
        low, middle, high = coverage["run_quartiles"]
        lines.append(
            f"earlier rollouts of the prompt cover {100 * coverage['covered']:.0f} % of a later "
            f"one, in runs of {coverage['run_mean']:.1f} tokens (median {middle:.0f}, half of them "
            f"{low:.0f} to {high:.0f}; runs of {coverage['least_run']} or more, "
            f"last {coverage['window']} rollouts)"
        )
    return "\n".join(lines)


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
