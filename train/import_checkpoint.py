"""Import a checkpoint: `python train/import_checkpoint.py SOURCE OUT [--dtype bfloat16]`.

SOURCE is a Hugging Face folder (config.json, safetensors, tokenizer) or a GGUF file of a Qwen3,
Qwen2.5 or Llama model (Llama 3, SmolLM2). OUT is the checkpoint folder to make; any run starts from
it by `model.checkpoint=OUT`. GGUF files need `pip install gguf`.
"""

import sys
from pathlib import Path

# Python puts this file's own folder first, where `train` would mean `train/train.py`.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from models.importing import import_checkpoint, stored_dtype  # noqa: E402
from train.arguments import source_and_out  # noqa: E402
from train.disk import naming  # noqa: E402
from train.ending import fail_in_one_line  # noqa: E402


def main() -> None:
    """Imports what the arguments name, and says what it was."""
    options = source_and_out(
        str(__doc__),
        source="a Hugging Face folder or a GGUF file",
        out="the checkpoint folder to make",
    ).parse_args()
    dtype = None if options.dtype is None else stored_dtype(options.dtype)
    with naming(options.out):
        config = import_checkpoint(options.source, options.out, dtype=dtype)
    print(f"imported {config.model_type}, {config.num_hidden_layers} layers: {options.out}")


if __name__ == "__main__":
    with fail_in_one_line():
        main()
