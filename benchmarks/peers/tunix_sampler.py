"""Rollouts by the sampler of google-tunix, a group at a time.

    PYTHON tunix_sampler.py FOLDER LONGEST      FOLDER is a Hugging Face checkpoint of the Llama
                                                family, LONGEST the positions of its cache

`serving` says what a job is. The sampler asks its tokenizer for the ids of a text: ours hands out
those of the job, and its padding is an id that no prompt has.
"""

import json
import sys
from functools import partial
from pathlib import Path

FOLDER = Path(sys.argv[1])
sys.path[0] = str(Path(__file__).resolve().parents[2])

import jax.numpy as jnp  # noqa: E402
from tunix.generate.sampler import (  # noqa: E402 # pyright: ignore[reportMissingImports]
    CacheConfig,
    Sampler,
)
from tunix.models.llama3 import model, params  # noqa: E402 # pyright: ignore[reportMissingImports]

from benchmarks.peers.serving import Job, Responses, serve  # noqa: E402


class GivenIds:
    """A tokenizer whose texts are numbers of prompts."""

    def __init__(self, padding: int) -> None:
        self.padding = padding
        self.prompts: list[list[int]] = []

    def encode(self, text: str) -> list[int]:
        """Ids of the prompt of that number."""
        return list(self.prompts[int(text)])

    def decode(self, ids: list[int]) -> str:
        """Nobody reads it."""
        return ""

    def bos_id(self) -> int:
        """None: prompts are whole."""
        return 0  # none

    def eos_id(self) -> int:
        """Never asked for: jobs say what stops."""
        return self.padding

    def pad_id(self) -> int:
        """An id that no prompt has."""
        return self.padding


def read_config(folder: Path) -> model.ModelConfig:
    """The architecture as tunix has it."""
    of = json.loads((folder / "config.json").read_text())
    # Its Llama attention leaves `rope_theta` out of the call (0.1.7), and so would use 1e6.
    model.apply_rope = partial(model.apply_rope, rope_theta=int(of["rope_theta"]))
    return model.ModelConfig(
        num_layers=of["num_hidden_layers"],
        vocab_size=of["vocab_size"],
        embed_dim=of["hidden_size"],
        hidden_dim=of["intermediate_size"],
        num_heads=of["num_attention_heads"],
        head_dim=of["head_dim"],
        num_kv_heads=of["num_key_value_heads"],
        rope_theta=int(of["rope_theta"]),
        norm_eps=of["rms_norm_eps"],
        weight_tying=of["tie_word_embeddings"],
    )


def main() -> None:
    """Serves the one arm."""
    config = read_config(FOLDER)
    transformer = params.create_model_from_safe_tensors(str(FOLDER), config, dtype=jnp.float32)
    tokenizer = GivenIds(config.vocab_size - 1)
    cache = CacheConfig(
        cache_size=int(sys.argv[2]),
        num_layers=config.num_layers,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    sampler = Sampler(transformer, tokenizer, cache)

    def sample(job: Job) -> Responses:
        tokenizer.prompts = [list(prompt) for prompt in job.prompts]
        sampling = {"temperature": job.temperature, "top_p": 1.0} if job.temperature else {}
        responses = []
        for number in range(len(job.prompts)):
            said = sampler(
                [str(number)] * job.group,
                max_generation_steps=job.new_tokens,
                max_prompt_length=max(map(len, job.prompts)),
                eos_tokens=list(job.stop_ids),
                seed=1000 * job.number + number,
                **sampling,
            )
            responses += [list(map(int, tokens)) for tokens in said.tokens]
        # It leaves out the stop token, which took a step as well.
        return [said + [job.stop_ids[0]] * (len(said) < job.new_tokens) for said in responses]

    serve({"tunix": sample})


if __name__ == "__main__":
    main()
