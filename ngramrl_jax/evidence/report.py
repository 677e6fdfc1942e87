"""A verdict as a table for people and as JSON for machines."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import jax
from rich import box
from rich.console import Console
from rich.table import Table

from ngramrl_jax.evidence.subject import Effort
from ngramrl_jax.evidence.verdict import Verdict

_COLOURS = {"holds": "green", "caught": "green", "fails": "red"}


def show(verdict: Verdict, console: Console) -> None:
    """Prints the findings, the planted faults, the notes and the verdict of one subject."""
    title = f"{verdict.subject}, {verdict.dtype} on {verdict.device}"
    checks = Table("check", "found", "judged by", "", title=title, box=box.SIMPLE_HEAD)
    for one in verdict.findings:
        checks.add_row(one.name, one.found, one.rule, _coloured(one.outcome))
    console.print(checks)
    if verdict.planted:
        planted = Table("planted fault", "check", "found", "", box=box.SIMPLE_HEAD)
        for fault in verdict.planted:
            word = "caught" if fault.caught else "not caught"
            planted.add_row(fault.fault, fault.check, fault.found, _coloured(word))
        console.print(planted)
    for note in verdict.notes:
        console.print(note, style="dim")
    console.print(f"[bold]{_sentence(verdict)}[/] ({verdict.seconds:.0f} s)\n")


def as_json(verdicts: Sequence[Verdict], effort: Effort, status: int) -> str:
    """Everything that was found, with what it was found with."""
    subjects = [
        {"conclusion": one.conclusion, **asdict(one), "rounding": one.rounding._asdict()}
        for one in verdicts
    ]
    software = {name: version(name) for name in ("jax", "numpy")}
    whole = {
        "status": status,
        "effort": asdict(effort),
        "backend": jax.default_backend(),
        "software": software,
        "subjects": subjects,
    }
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def write_json(path: Path, text: str) -> None:
    """Writes the file.

    Raises:
        ValueError: It cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ValueError(f"--json: {path}: {error.strerror}") from error


def _sentence(verdict: Verdict) -> str:
    if verdict.conclusion == "lossless":
        return "Verdict: lossless. Every check holds and every planted fault was caught."
    if verdict.conclusion == "not lossless":
        failed = [one.name for one in verdict.findings if one.outcome == "fails"]
        return f"Verdict: NOT lossless. Failed: {'; '.join(failed)}."
    idle = [one.name for one in verdict.findings if one.outcome == "no power"]
    blind = [f"{one.check} (missed: {one.fault})" for one in verdict.planted if not one.caught]
    return f"Verdict: no power. These could not have seen a fault: {'; '.join(idle + blind)}."


def _coloured(word: str) -> str:
    return f"[{_COLOURS.get(word, 'yellow')}]{word}[/]"
