"""Reading a run's configuration: one YAML file, `a.b=c` overrides, and what they may hold."""

from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from train.config import RunConfig

CONFIGS = Path(__file__).resolve().parents[1] / "configs"

# Whole numbers that must not be lower. What is no number of a kind is checked where it is used.
_LEAST = {
    "seed": 0,
    "data.train_items": 0,
    "data.heldout_items": 0,
    "data.reward_workers": 1,
    "warm_start.vocab_size": 261,  # all bytes, and the special tokens
    "warm_start.epochs": 1,
    "warm_start.batch": 1,
    "warm_start.probe_items": 1,
    "rollout.slots": 0,
    "rollout.draft_tokens": 0,
    "rollout.max_prompt_tokens": 1,
    "rollout.max_new_tokens": 1,
    "rollout.top_k": 0,
    "rollout.window": 0,
    "rollout.history_mb": 1,
    "rollout.plain_rounds": 1,
    "rollout.wave": 1,
    "rollout.prefix_entries": 0,
    "rollout.best_tokens": 0,
    "rollout.prefetch_candidates": 1,
    "objective.overlong_buffer": 0,
    "objective.sampling_rounds": 1,
    "train.epochs": 1,
    "train.steps": 0,
    "train.prompts_per_step": 1,
    "train.group": 2,  # advantages compare siblings
    "train.updates_per_step": 1,
    "train.minibatches": 1,
    "train.micro_batch": 1,
    "train.logprob_chunk": 1,
    "train.checkpoint_every": 1,
    "train.keep_checkpoints": 1,
    "train.keep_best": 0,
    "evaluation.every": 0,
    "evaluation.slots": 1,
    "evaluation.top_k": 0,
    "trace.max_mb": 1,
    "mesh.data": 1,
    "mesh.fsdp": 1,
    "mesh.tensor": 1,
    "mesh.rollout_tensor": 0,
    "distributed.processes": 0,
    "distributed.process": -1,
    "distributed.timeout_s": 5,
}
_MOST = 2**31 - 1  # int32 on the device


def load_config(path: Path | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a YAML file (None: the defaults) and applies `a.b=c` overrides.

    Raises:
        ValueError: Missing file or unknown key (the nearest one is named), value of another type or
            below the least that makes sense.
    """
    if path is not None and not path.is_file():
        near = get_close_matches(path.stem, [file.stem for file in CONFIGS.glob("*.yaml")], 1, 0.0)
        hint = "".join(f"; nearest: configs/{stem}.yaml" for stem in near)
        raise ValueError(f"configuration: found no file {path}, allowed: a YAML file{hint}")
    for override in overrides:
        if "=" not in override:
            raise ValueError(f"override: found {override!r}, allowed: key=value")
    schema = OmegaConf.structured(RunConfig)
    base = OmegaConf.create() if path is None else _read_yaml(path)
    try:
        given = OmegaConf.merge(base, OmegaConf.from_dotlist(list(overrides)))
        _refuse_unknown(given, schema)
        if OmegaConf.select(given, "rollout.prefetch") is False:  # what YAML makes of a bare off
            OmegaConf.update(given, "rollout.prefetch", "off")
        merged = OmegaConf.merge(schema, given)
        _refuse_out_of_range(merged)
        return OmegaConf.to_object(merged)  # pyright: ignore[reportReturnType]
    except OmegaConfBaseException as error:
        where = error.full_key or "configuration"
        raise ValueError(f"{where}: {str(error).splitlines()[0]}") from error


def to_yaml(config: RunConfig) -> str:
    """The resolved configuration, as `load_config` reads it."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def flatten(node: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of a configuration (an OmegaConf node) by dotted name."""
    if not isinstance(node, DictConfig):
        return {prefix.rstrip("."): node}
    leaves: dict[str, Any] = {}
    for key in node:
        leaves |= flatten(node[key], f"{prefix}{key}.")
    return leaves


def _read_yaml(path: Path) -> DictConfig:
    try:
        read = OmegaConf.load(path)
    except (YAMLError, UnicodeError) as error:
        line = " ".join(str(error).split())
        raise ValueError(f"{path}: not YAML: {line}") from error
    if not isinstance(read, DictConfig):
        raise ValueError(f"{path}: found a list, allowed: key: value lines")
    return read


def _refuse_unknown(given: Any, schema: DictConfig) -> None:
    known = flatten(schema)
    for key in flatten(given):
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise ValueError(f"configuration: found unknown key {key}{hint}")


def _refuse_out_of_range(merged: Any) -> None:
    leaves = flatten(merged)
    if leaves["rollout.draft_length"] not in ("auto", "fixed"):
        found = leaves["rollout.draft_length"]
        raise ValueError(f"rollout.draft_length: found {found}, allowed: auto, fixed")
    for key, least in _LEAST.items():
        if not least <= leaves[key] <= _MOST:
            raise ValueError(f"{key}: found {leaves[key]}, allowed: {least} to {_MOST}")
