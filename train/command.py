"""What all commands share: arguments and the compilation cache; `train.ending` ends them."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from train.config import RunConfig
from train.config_file import load_config
from train.ending import fail_in_one_line
from train.processes import connect

REPOSITORY = Path(__file__).resolve().parents[1]


def main(command: Callable[[RunConfig], object], default: str, usage: str) -> None:
    """Runs `command` on the configuration that `[CONFIG] [key=value ...]` names."""
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(usage)
        return
    use_compilation_cache()
    with fail_in_one_line():
        config = _configuration(arguments, default)
        connect(config.distributed)
        command(config)


def use_compilation_cache() -> None:
    """Keeps compiled programs between runs of this checkout."""
    jax.config.update("jax_compilation_cache_dir", str(REPOSITORY / ".cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def _configuration(arguments: Sequence[str], default: str) -> RunConfig:
    """The named configuration, or the default one where only overrides are given."""
    named = bool(arguments) and "=" not in arguments[0]
    path = Path(arguments[0]) if named else REPOSITORY / default
    return load_config(path, arguments[1:] if named else arguments)
