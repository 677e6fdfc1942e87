"""Export a checkpoint: `python train/export_checkpoint.py CHECKPOINT OUT [--dtype bfloat16]`.

OUT is the Hugging Face folder to make (config.json, safetensors, tokenizer), which `transformers`
and the inference engines read.
"""

import sys
from pathlib import Path

# Python puts this file's own folder first, where `train` would mean `train/train.py`.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.exporting import export_checkpoint  # noqa: E402
from models.importing import stored_dtype  # noqa: E402
from train.arguments import source_and_out  # noqa: E402
from train.disk import naming  # noqa: E402
from train.ending import fail_in_one_line  # noqa: E402


def main() -> None:
    """Exports what the arguments name, and says what it was."""
    options = source_and_out(
        str(__doc__), source="a checkpoint folder", out="the Hugging Face folder to make"
    ).parse_args()
    dtype = None if options.dtype is None else stored_dtype(options.dtype)
    with naming(options.out):
        config = export_checkpoint(options.source, options.out, dtype=dtype)
    print(f"exported {config.model_type}, {config.num_hidden_layers} layers: {options.out}")


if __name__ == "__main__":
    with fail_in_one_line():
        main()
