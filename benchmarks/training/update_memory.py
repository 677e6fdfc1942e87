"""Peak memory of one update, compiled from shapes alone, beside what a run holds anyway.

The aim, for a vocabulary of 152k and 8k tokens in one micro-batch, is 1.5 times (parameters +
optimizer + one chunk of logits). The gradients alone make it 1.33. Compiled in float32 where there
is no accelerator, whose compiler may do better or worse.

    python benchmarks/training/update_memory.py [models=qwen3_0_6b,qwen3_1_7b,qwen3_4b,qwen3_8b]
      [rows=8] [tokens=1024] [chunk=256] [json=FILE]
"""

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

import jax  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from benchmarks.options import parse_options  # noqa: E402
from models.config import ModelConfig, preset  # noqa: E402
from models.policy import Qwen3Policy  # noqa: E402
from ngramrl_jax.types import Sampling  # noqa: E402
from train.batching import Batch  # noqa: E402
from train.command import fail_in_one_line, use_compilation_cache  # noqa: E402
from train.flops import matmul_flops  # noqa: E402
from train.learner import Learner, OptimizerSettings  # noqa: E402
from train.metrics import describe_environment, to_json  # noqa: E402
from train.objectives import grpo  # noqa: E402
from train.planning import temporary_bytes  # noqa: E402

DEFAULTS = {
    "models": "qwen3_0_6b,qwen3_1_7b,qwen3_4b,qwen3_8b",
    "rows": 8,
    "tokens": 1024,
    "chunk": 256,
    "json": "",
}
GB = 10**9


@dataclass(frozen=True)
class UpdateMemory:
    """Bytes of one update, all float32, and its operations.

    Attributes:
        parameters: Of the weights; each moment of the optimizer and the gradients take the same.
        held: Parameters and optimizer.
        donated: What of `held` is written over in place.
        chunk: One chunk of logits.
        peak: All that exists at the same time at most.
        flops: Operations of all matrix products.
    """

    parameters: int
    held: int
    donated: int
    chunk: int
    peak: int
    flops: float

    @property
    def ratio(self) -> float:
        """Peak by parameters + optimizer + chunk."""
        return self.peak / (self.held + self.chunk)


def update_memory(model: ModelConfig, rows: int, tokens: int, chunk: int) -> UpdateMemory:
    """Compiles an update on one micro-batch of `rows` rows of `tokens` tokens, all of responses.

    Args:
        model: Architecture.
        rows: B.
        tokens: T, which is also the number of response positions.
        chunk: Tokens whose logits exist at the same time.
    """
    policy = Qwen3Policy(model)
    learner = Learner(policy, OptimizerSettings(1e-3), grpo(), Sampling(), chunk_tokens=chunk)
    params = jax.eval_shape(policy.init_params, jax.random.key(0))
    traced = learner.trace(params, Batch.abstract(1, rows, tokens, tokens))
    compiled = traced.lower().compile()
    memory: Any = compiled.memory_analysis()
    return UpdateMemory(
        parameters=_bytes(params),
        held=_bytes(learner.abstract_state(params)),
        donated=memory.alias_size_in_bytes,
        chunk=4 * chunk * model.vocab_size,
        peak=memory.argument_size_in_bytes + temporary_bytes(compiled),
        flops=matmul_flops(traced.jaxpr),
    )


def _bytes(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def show(measured: dict[str, UpdateMemory], title: str) -> None:
    """One line for every model."""
    table = Table(title=title)
    table.add_column("model")
    for head in ("held, GB", "chunk", "gradients", "the rest", "peak", "of held + chunk", "TFLOP"):
        table.add_column(head, justify="right")
    for name, of in measured.items():
        rest = of.peak - of.held - of.parameters
        cells = [of.held / GB, of.chunk / GB, of.parameters / GB, rest / GB, of.peak / GB, of.ratio]
        table.add_row(name, *(f"{cell:.2f}" for cell in cells), f"{of.flops / 1e12:.1f}")
    Console(width=100).print(table)


def main() -> None:
    """Compiles, prints, and writes the figures where asked."""
    options = parse_options(sys.argv[1:], DEFAULTS)
    shape = (options["rows"], options["tokens"], options["chunk"])
    measured = {name: update_memory(preset(name), *shape) for name in options["models"].split(",")}
    show(measured, f"one update on {shape[0]} × {shape[1]} tokens, float32")
    if options["json"]:
        figures = {name: asdict(of) | {"ratio": of.ratio} for name, of in measured.items()}
        record = {"options": options, "models": figures, **describe_environment(seed=0)}
        Path(options["json"]).write_text(to_json(record, indent=1) + "\n")


if __name__ == "__main__":
    use_compilation_cache()
    with fail_in_one_line():
        main()
