"""A prompt run in chunks leaves the same cache as one run whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.config import preset
from models.policy import Qwen3Policy
from ngramrl_jax.rollout import admit


@pytest.mark.parametrize("length", [8, 16, 29])
def test_chunks_leave_the_cache_of_the_whole_prompt(monkeypatch, length):
    """Less than a chunk, two of them, and three with a shorter one in front."""
    policy = Qwen3Policy(preset("tiny"))
    params = policy.init_params(jax.random.key(0))
    tokens_P = jax.random.randint(jax.random.key(1), (length,), 0, policy.vocab_size)

    def run():
        prefixes, entry = policy.init_cache(3, 40), jnp.asarray(1, jnp.int32)
        return jax.jit(lambda *given: admit.prefill(policy, *given))(
            params, prefixes, tokens_P, entry
        )

    whole = run()
    monkeypatch.setattr(admit, "PREFILL_CHUNK", 8)
    chunked = run()
    for got, expected in zip(chunked, whole, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-5, rtol=0)
        assert np.abs(expected[:, 1, :, length - 1]).max() > 1e-3


def test_a_chunk_bounds_the_memory(monkeypatch):
    """Scores of 1024 x 1024 for 4 heads are 16 MB; in chunks of 128 the scratch is far below."""
    policy = Qwen3Policy(preset("tiny"))
    params = jax.eval_shape(policy.init_params, jax.random.key(0))
    given = (
        params,
        jax.eval_shape(lambda: policy.init_cache(2, 1024)),
        jax.ShapeDtypeStruct((1024,), jnp.int32),
        jax.ShapeDtypeStruct((), jnp.int32),
    )

    def scratch(chunk):
        monkeypatch.setattr(admit, "PREFILL_CHUNK", chunk)
        prefill = jax.jit(lambda *given: admit.prefill(policy, *given), donate_argnums=1)
        memory = prefill.lower(*given).compile().memory_analysis()
        assert memory is not None
        return memory.temp_size_in_bytes

    assert scratch(128) < scratch(1024) / 2
