"""The library alone: a model that is not ours, in a loop of your own.

    pip install .                          (the library: nothing of models/ or train/)
    python examples/library_alone.py

A small attention model in plain jnp learns, by REINFORCE, to count upwards. Its rollouts are
drafted from those of the epochs before; every epoch is sampled again by plain decoding to show that
the tokens are the same.

Legend: B rows, T tokens of a forward, V vocabulary, S cache positions, D width, N rollouts,
P prompt tokens, R response tokens, L = P + R.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import NgramDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.rollout.engine import RolloutEngine
from ngramrl_jax.rollout.settings import EngineSettings
from ngramrl_jax.types import RolloutRequest

EPOCHS, PROMPTS, GROUP, P, R = 6, 8, 8, 4, 32
ROWS, DRAFT_TOKENS, LEARNING_RATE = 16, 8, 5.0

Params = dict[str, jax.Array]


@dataclass(frozen=True)
class OneHead:
    """One attention head; implements `ngramrl_jax.protocols.Policy`.

    The cache is one array `[2, B, S, D]`: keys, then values.
    """

    vocab_size: int = 16
    width: int = 32

    def init_params(self, key: jax.Array) -> Params:
        """Random parameters."""
        shapes = {"token": (self.vocab_size, self.width), "position": (P + R, self.width)}
        shapes |= {name: (self.width, self.width) for name in ("query", "key", "value")}
        shapes["out"] = (self.width, self.vocab_size)
        keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
        return {name: 0.7 * jax.random.normal(keys[name], shapes[name]) for name in shapes}

    def init_cache(self, rows: int, capacity: int) -> jax.Array:
        """Nothing stored yet."""
        return jnp.zeros((2, rows, capacity, self.width))

    def forward(
        self,
        params: Params,
        tokens_BT: jax.Array,
        position_B: jax.Array,
        cache: jax.Array,
        *,
        live: int,
    ) -> tuple[jax.Array, jax.Array]:
        """Stores keys and values of the tokens, and attends to all up to each token itself."""
        row_B1 = jnp.arange(tokens_BT.shape[0])[:, None]
        position_BT = position_B[:, None] + jnp.arange(tokens_BT.shape[1])[None, :]
        input_BTD = params["token"][tokens_BT] + params["position"][position_BT]
        new = jnp.stack([input_BTD @ params["key"], input_BTD @ params["value"]])
        cache = cache.at[:, row_B1, position_BT].set(new, mode="drop")
        key_BSD, value_BSD = cache[:, :, :live]
        score_BTS = jnp.einsum("btd,bsd->bts", input_BTD @ params["query"], key_BSD) / self.width
        seen_BTS = jnp.arange(live)[None, None, :] <= position_BT[:, :, None]
        weight_BTS = jax.nn.softmax(jnp.where(seen_BTS, score_BTS, -jnp.inf))
        return jnp.tanh(input_BTD + weight_BTS @ value_BSD) @ params["out"], cache

    def commit(self, cache: jax.Array, position_B: jax.Array, count_B: jax.Array) -> jax.Array:
        """Nothing to do: the cache is addressed by position, and what was rejected written over."""
        return cache

    def insert(
        self, cache: jax.Array, prefixes: jax.Array, source_B: jax.Array, slot_B: jax.Array
    ) -> jax.Array:
        """Copies prompts into rows."""
        width = prefixes.shape[2]
        return cache.at[:, slot_B, :width].set(prefixes[:, source_B], mode="drop")


def loss(
    params: Params, policy: OneHead, tokens_NL: jax.Array, advantage_N: jax.Array
) -> jax.Array:
    """REINFORCE over the response tokens."""
    rows, length = tokens_NL.shape
    cache, start_N = policy.init_cache(rows, length), jnp.zeros(rows, jnp.int32)
    logits_NLV, _ = policy.forward(params, tokens_NL, start_N, cache, live=length)
    logp_NRV = jax.nn.log_softmax(logits_NLV[:, P - 1 : -1])
    logp_NR = jnp.take_along_axis(logp_NRV, tokens_NL[:, P:, None], axis=2)[..., 0]
    return -(advantage_N[:, None] * logp_NR).mean()


def main() -> None:
    """Rollouts with drafting, a reward and an update, six times."""
    policy = OneHead()
    params = policy.init_params(jax.random.key(0))
    prompts = np.random.default_rng(0).integers(0, policy.vocab_size, (PROMPTS, P), np.int32)
    requests = [RolloutRequest(i, g, prompts[i], R) for i in range(PROMPTS) for g in range(GROUP)]
    plain = EngineSettings(
        slots=ROWS, draft_tokens=0, max_prompt_tokens=P, max_new_tokens=R, stop_ids=()
    )
    history = History(window=2 * GROUP)
    drafter = NgramDrafter(ROWS, DRAFT_TOKENS, history)
    engine = RolloutEngine(policy, drafter, replace(plain, draft_tokens=DRAFT_TOKENS))
    reference = RolloutEngine(policy, NoDrafter(ROWS), plain)
    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    for epoch in range(EPOCHS):
        rollouts, counters = engine.generate(
            params, requests, seed=0, step=epoch, policy_version=epoch
        )
        again, _ = reference.generate(params, requests, seed=0, step=epoch, policy_version=epoch)
        tokens_NR = np.stack([rollout.tokens_N for rollout in rollouts])
        same_NR = tokens_NR == np.stack([rollout.tokens_N for rollout in again])
        reward_N = (np.diff(tokens_NR) == 1).mean(axis=1, dtype=np.float32)
        print(
            f"epoch {epoch + 1}: {counters.tokens_per_forward:.2f} tokens per forward, "
            f"{same_NR.sum()} of {same_NR.size} tokens as in plain decoding, "
            f"reward {reward_N.mean():.3f}"
        )
        tokens_NL = np.concatenate([np.repeat(prompts, GROUP, axis=0), tokens_NR], axis=1)
        advantage_N = (reward_N - reward_N.mean()) / reward_N.std()
        slope = gradient(params, policy, tokens_NL, advantage_N)
        params = jax.tree.map(lambda one, by: one - LEARNING_RATE * by, params, slope)


if __name__ == "__main__":
    main()
