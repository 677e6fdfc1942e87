"""Fixtures of the model tests: small configurations, and logits made with `transformers`."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import ModelConfig
from models.huggingface import from_huggingface
from models.policy import Qwen3Policy

FIXTURES = Path(__file__).parent / "fixtures"


@dataclass(frozen=True)
class Reference:
    """One case of fixtures/make_fixtures.py: a policy with its weights, and what it must say."""

    policy: Qwen3Policy
    tensors: dict[str, np.ndarray]
    params: Any
    tokens_BT: np.ndarray
    logits_BTV: np.ndarray


def seeded_tensor(seed: int, name: str, shape: list[int]) -> np.ndarray:
    """The rule of fixtures/make_fixtures.py."""
    draw = np.random.default_rng([seed, zlib.crc32(name.encode())]).standard_normal(shape)
    return (1 + 0.2 * draw if "norm" in name else 0.15 * draw).astype(np.float32)


@pytest.fixture(
    scope="session",
    params=[
        "tied_grouped",
        "untied_full_heads",
        "untied_grouped",
        "tied_one_kv_head",
        "qwen2_tied",
        "qwen2_untied",
        "llama_tied",
        "llama3_untied",
    ],
)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Reference:
    with np.load(FIXTURES / f"{request.param}.npz") as case:
        path = tmp_path_factory.mktemp("case") / "config.json"
        path.write_text(str(case["config"]), encoding="utf-8")
        config = ModelConfig.from_json(path)
        shapes = json.loads(str(case["shapes"]))
        seed = int(case["seed"])
        tensors = {name: seeded_tensor(seed, name, shape) for name, shape in shapes.items()}
        params = jax.tree.map(jnp.asarray, from_huggingface(config, tensors))
        return Reference(
            Qwen3Policy(config), tensors, params, case["tokens_BT"], case["logits_BTV"]
        )


@pytest.fixture(scope="session")
def small() -> ModelConfig:
    """A configuration whose every axis divides by 2, and no two sizes of which coincide."""
    return ModelConfig(
        model_type="qwen3",
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        rope_theta=1e4,
        rope_scaling=None,
        rms_norm_eps=1e-6,
        tie_word_embeddings=False,
    )


@pytest.fixture(scope="session")
def small_policy(small: ModelConfig) -> Qwen3Policy:
    return Qwen3Policy(small)


@pytest.fixture(scope="session")
def small_params(small_policy: Qwen3Policy) -> Any:
    """Matrices five times their usual size, so that every layer has its say."""
    params = jax.jit(small_policy.init_params)(jax.random.key(0))
    return jax.tree.map_with_path(
        lambda path, leaf: leaf if path[-1].key == "scale" else leaf * 5, params
    )
