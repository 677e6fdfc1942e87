"""The task that a configuration names: one of ours, or one in a user's own file.

`task=path/to/file.py:Name` takes, by what Name is,

- a class, or a function of at most one argument: it makes the task (`train.tasks.base.Task`) and is
  given the `data` section if it takes an argument;
- a function of two arguments: a reward for the prompts in `data.path`, see `scored_prompts`.
"""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from train.config import DataConfig, RunConfig
from train.tasks.base import Task
from train.tasks.function_calling import FunctionCalling
from train.tasks.mathematics import Mathematics
from train.tasks.own_file import load_name
from train.tasks.own_task import OwnTask
from train.tasks.scored_prompts import ScoredPrompts
from train.tasks.text2sql import TextToSql

_KINDS = "a class or a function that makes a task, or a reward(record, response)"


def open_task(config: RunConfig) -> Task:
    """The configured task; whoever opened it closes it.

    Raises:
        ValueError: Unknown task, or data that it cannot read.
    """
    if config.task == "text2sql":
        return _text_to_sql(config.data)
    if config.task == "mathematics":
        return _mathematics(config.data)
    if config.task == "function_calling":
        return _function_calling(config.data)
    if ".py:" not in config.task:
        allowed = "text2sql, mathematics, function_calling, path/to/file.py:Name"
        raise ValueError(f"task: found {config.task}, allowed: {allowed}")
    named = load_name(config.task)
    if not callable(named):
        found = type(named).__name__
        raise ValueError(f"task: found {config.task} to be of type {found}, allowed: {_KINDS}")
    arguments = _arguments(named)
    needed = sum(one.default is inspect.Parameter.empty for one in arguments)
    if needed == 2 and not inspect.isclass(named):
        return _scored_prompts(config.data, config.task)
    if needed > 1:
        raise ValueError(f"task: found {config.task} to need {needed} arguments, allowed: {_KINDS}")
    return OwnTask(config.task, named, [config.data][: len(arguments)])


def _text_to_sql(data: DataConfig) -> Task:
    return TextToSql(
        Path(data.path),
        train_limit=data.train_items,
        heldout_limit=data.heldout_items,
        run_credit=data.run_credit,
        chat=data.chat,
        workers=data.reward_workers,
    )


def _mathematics(data: DataConfig) -> Task:
    return Mathematics(
        data.path,
        train_limit=data.train_items,
        heldout_limit=data.heldout_items,
        workers=data.reward_workers,
    )


def _function_calling(data: DataConfig) -> Task:
    return FunctionCalling(
        Path(data.path),
        train_limit=data.train_items,
        heldout_limit=data.heldout_items,
        name_credit=data.run_credit,
    )


def _scored_prompts(data: DataConfig, reward: str) -> Task:
    task = ScoredPrompts(
        Path(data.path),
        reward,
        train_limit=data.train_items,
        heldout_limit=data.heldout_items,
        workers=data.reward_workers,
        seconds=data.reward_seconds,
    )
    if not task.train_items:
        raise ValueError(f"{data.path}: found no items, allowed: one or more")
    return task


def _arguments(make: Callable[..., Any]) -> list[inspect.Parameter]:
    """What can be given by position, a class's `self` not counted."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(make).parameters.values()
    return [one for one in parameters if one.kind in positional]
