"""A model on disk: one folder with architecture, tokenizer and weights.

    config.json  tokenizer.json  [tokenizer_config.json  generation_config.json]  params/ (Orbax)
    files.json

`files.json` records what is under `params/`, and the tokenizer, see `models.fingerprints`. The
folder is written under a temporary name beside its final one and renamed when complete, so that a
half-written checkpoint is never seen under the name of a whole one.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from jax.sharding import Mesh, SingleDeviceSharding
from jax.typing import DTypeLike

from models import fingerprints
from models.config import ModelConfig
from models.policy import Params, Qwen3Policy
from models.sharding import parameter_path, shardings

# the first is needed; the last names the tokens that end a response
TOKENIZER_FILES: tuple[str, ...] = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
)


def save(
    path: str | Path,
    config: ModelConfig,
    params: Params,
    tokenizer_path: str | Path,
    *,
    dtype: DTypeLike | None = None,
) -> None:
    """Writes a checkpoint folder.

    Args:
        path: The folder to make; it must not exist.
        config: Architecture.
        params: Parameters as from `Qwen3Policy.init_params`.
        tokenizer_path: A `tokenizer.json`, or a folder that holds one; a `tokenizer_config.json`
            beside it is copied too.
        dtype: Store the weights in this dtype, e.g. bfloat16; None keeps theirs.

    Raises:
        ValueError: `path` exists, the tokenizer does not, or the parameters are not those of
            `config`.
    """
    tokenizer = Path(tokenizer_path)
    tokenizer = tokenizer / TOKENIZER_FILES[0] if tokenizer.is_dir() else tokenizer
    with writing(path) as partial:
        _check_json(tokenizer)
        _check_shapes(Path(path), config, params)
        partial.mkdir(parents=True)
        config.to_json(partial / "config.json")
        shutil.copyfile(tokenizer, partial / TOKENIZER_FILES[0])
        for name in TOKENIZER_FILES[1:]:
            if (beside := tokenizer.with_name(name)).is_file():
                shutil.copyfile(beside, partial / name)
        stored = params if dtype is None else jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(partial / "params", stored)


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Gives the name of a folder to make and fill; at the end it becomes the checkpoint `path`.

    Raises:
        ValueError: `path` exists.
    """
    path = Path(path).absolute()
    if path.exists():
        raise ValueError(f"{path}: exists, allowed: a new folder")
    partial = path.with_name(f".{path.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    yield partial
    fingerprints.write(
        partial / "params", partial / fingerprints.RECORD, beside=partial / TOKENIZER_FILES[0]
    )
    partial.rename(path)


def load(
    path: str | Path, dtype: DTypeLike = jnp.float32, mesh: Mesh | None = None
) -> tuple[ModelConfig, Params]:
    """Reads a checkpoint folder.

    Args:
        path: A folder that `save` wrote.
        dtype: Dtype of the parameters, whatever they are stored in.
        mesh: Restore onto this mesh by the sharding table; None puts all on the first device.

    Returns:
        The architecture and its parameters.

    Raises:
        ValueError: A file is missing or damaged, or the weights are not those of `config.json`.
    """
    path = Path(path).absolute()
    if not path.is_dir():
        raise ValueError(
            f"{path}: not found, a checkpoint is a folder; one of Hugging Face's, or a GGUF file, "
            "becomes one by train/import_checkpoint.py"
        )
    config = ModelConfig.from_json(path / "config.json")
    _check_json(path / TOKENIZER_FILES[0])
    fingerprints.check(path / "params", path / fingerprints.RECORD)
    target = abstract_params(config, dtype)
    device = SingleDeviceSharding(jax.local_devices()[0])
    places = jax.tree.map(lambda _: device, target) if mesh is None else shardings(target, mesh)
    target = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        target,
        places,
    )
    try:
        with ocp.StandardCheckpointer() as checkpointer:
            stored = checkpointer.metadata(path / "params").item_metadata.tree
            _check_shapes(path, config, stored)
            return config, checkpointer.restore(path / "params", target)
    except (OSError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: cannot be restored ({str(error).splitlines()[0]})") from None


def check_tokenizer(path: str | Path) -> None:
    """Compares the tokenizer of a checkpoint folder with the one that it was saved with.

    Raises:
        ValueError: It is another one: every id would mean another text.
    """
    path = Path(path)
    if not fingerprints.is_recorded(path / TOKENIZER_FILES[0], path / fingerprints.RECORD):
        raise ValueError(
            f"tokenizer: found another {path / TOKENIZER_FILES[0]} than the checkpoint was saved "
            f"with, allowed: the one that {fingerprints.RECORD} records"
        )


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every parameter of an architecture, by its path in the sharding table."""
    return _shapes(abstract_params(config, jnp.float32))


def abstract_params(config: ModelConfig, dtype: DTypeLike) -> Any:
    """Shapes and dtypes of the parameters of an architecture."""
    init = Qwen3Policy(config).init_params
    return jax.eval_shape(lambda: init(jax.random.key(0), dtype))


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree.leaves_with_path(tree)
    return {parameter_path(entry): tuple(leaf.shape) for entry, leaf in leaves}


def _check_shapes(path: Path, config: ModelConfig, tree: Any) -> None:
    """Raises unless the tree has exactly the parameters of the architecture."""
    found, wanted = _shapes(tree), parameter_shapes(config)
    for name in sorted(found.keys() | wanted.keys()):
        if found.get(name) != wanted.get(name):
            raise ValueError(
                f"{path}: parameter {name}: found shape {found.get(name)}, "
                f"allowed by its configuration: {wanted.get(name)}"
            )


def _check_json(path: Path) -> None:
    """Raises unless the file holds a JSON object."""
    try:
        good = isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except FileNotFoundError:
        raise ValueError(f"{path}: not found") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError):
        good = False
    if not good:
        raise ValueError(f"{path}: damaged, allowed: a JSON object")
