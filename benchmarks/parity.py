"""Live comparison with `transformers`: `make parity` (an environment of its own, torch on CPU).

For tiny random models of every family: `transformers` writes a folder, our command imports it, and
exports it again; `transformers` reads that folder, and both logits and greedy text must be those
that it began with. Our own logits come from a child process in this project's environment.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from transformers import (  # pyright: ignore[reportMissingImports]
    AutoModelForCausalLM,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
)

REPOSITORY = Path(__file__).resolve().parents[1]
OURS = REPOSITORY / ".venv" / "bin" / "python"
SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "qwen3 tied": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True),
    "qwen3 untied": Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=False),
    "qwen2 tied": Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen2 untied": Qwen2Config(**SIZES, tie_word_embeddings=False),
    "llama tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama3 untied": LlamaConfig(**SIZES, rope_parameters=LLAMA3, tie_word_embeddings=False),
}
GREEDY_TOKENS = 200
TOLERANCE = 1e-4
OUR_LOGITS = """
import sys, numpy as np, jax.numpy as jnp
from models import checkpoint
from models.policy import Qwen3Policy
config, params = checkpoint.load(sys.argv[1])
policy = Qwen3Policy(config)
tokens_BT = jnp.asarray(np.load(sys.argv[2]), jnp.int32)
np.save(sys.argv[3], policy.logits(params, policy.hidden(params, tokens_BT)))
"""


def run(*arguments: object) -> None:
    """Runs our Python in the repository."""
    subprocess.run([OURS, *map(str, arguments)], cwd=REPOSITORY, check=True)


def gap(name: str, config: object, folder: Path) -> float:
    """Largest difference in logits, over the greedy text of the model and by either way."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "bias" in key or "norm" in key:
                value.add_(0.2 * torch.randn_like(value))
    model.save_pretrained(folder / "theirs")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "theirs" / file).write_text("{}", encoding="utf-8")
    run("train/import_checkpoint.py", folder / "theirs", folder / "ours")
    run("train/export_checkpoint.py", folder / "ours", folder / "back")
    start = torch.tensor([[5, 17, 3]])
    text = model.generate(start, max_new_tokens=GREEDY_TOKENS, do_sample=False, eos_token_id=None)
    np.save(folder / "tokens.npy", text.numpy())
    run("-c", OUR_LOGITS, folder / "ours", folder / "tokens.npy", folder / "logits.npy")
    with torch.no_grad():
        wanted = model(text).logits.numpy()
        back = AutoModelForCausalLM.from_pretrained(folder / "back").float()(text).logits.numpy()
    ours = np.load(folder / "logits.npy")
    greedy = np.argmax(ours[:, 2:-1], axis=-1)  # the same choice at every step: the same text
    if not np.array_equal(greedy, text.numpy()[:, 3:]):
        print(f"{name}: greedy text differs")
        return float("inf")
    return float(max(np.abs(ours - wanted).max(), np.abs(back - wanted).max()))


def main() -> None:
    """Prints a line for each model; exit status 1 where one differs."""
    torch.set_num_threads(1)
    gaps = []
    for name, config in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            gaps.append(gap(name, config, Path(folder)))
        print(f"{name}: largest difference of a logit {gaps[-1]:.1e} over {GREEDY_TOKENS} tokens")
    sys.exit(max(gaps) > TOLERANCE)


if __name__ == "__main__":
    main()
