"""Export a checkpoint: `python train/export_checkpoint.py SOURCE OUT [--dtype bfloat16]`.

SOURCE is a run folder, whose newest checkpoint is exported, one of its `checkpoints/STEP`, or a
checkpoint folder such as an imported one. OUT is the Hugging Face folder to make (config.json,
safetensors, tokenizer), which `transformers` and the inference engines read. A run's weights are
float32 unless `--dtype` says another; its architecture and tokenizer are those of the checkpoint
that it began with, which must still be there.
"""

import sys
from pathlib import Path

# Python puts this file's own folder first, where `train` would mean `train/train.py`.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from models import checkpoint, fingerprints  # noqa: E402
from models.exporting import Weights, export_checkpoint  # noqa: E402
from models.importing import stored_dtype  # noqa: E402
from train.arguments import source_and_out  # noqa: E402
from train.checkpoints import PARAMS_PREFIX, STATE, Checkpoints  # noqa: E402
from train.config_file import load_config  # noqa: E402
from train.disk import naming  # noqa: E402
from train.ending import fail_in_one_line  # noqa: E402


def main() -> None:
    """Exports what the arguments name, and says what it was."""
    options = source_and_out(
        str(__doc__),
        source="a run folder, one of its checkpoints, or a checkpoint folder",
        out="the Hugging Face folder to make",
    ).parse_args()
    dtype = None if options.dtype is None else stored_dtype(options.dtype)
    base, weights = _trained(options.source) or (options.source, None)
    with naming(options.out):
        config = export_checkpoint(base, options.out, dtype=dtype, weights=weights)
    print(f"exported {config.model_type}, {config.num_hidden_layers} layers: {options.out}")


def _trained(source: Path) -> tuple[Path, Weights] | None:
    """The checkpoint that a run began with, and what it has trained; None for other folders."""
    source = source.resolve()
    is_step = source.parent.name == "checkpoints" and source.name.isdecimal()
    run = source.parents[1] if is_step else source
    if not (run / "config.yaml").is_file():
        return None
    step = source if is_step else Checkpoints(run / "checkpoints").newest_folder()
    if step is None:
        raise ValueError(f"{run}: found no checkpoint, allowed: a run that made one")
    base = Path(load_config(run / "config.yaml").model.checkpoint)
    checkpoint.check_tokenizer(base)
    state = step / STATE
    return base, Weights(state, step, step / fingerprints.RECORD, PARAMS_PREFIX)


if __name__ == "__main__":
    with fail_in_one_line():
        main()
