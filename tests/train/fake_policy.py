"""A causal policy of a few hundred parameters behind the trainer's interface."""

import jax
import jax.numpy as jnp
import numpy as np


class FakePolicy:
    """Embedding, running mean over the past, one hidden layer, untied head.

    `traces` counts how often Python went through `hidden`: flat once nothing new is compiled.
    """

    def __init__(self, vocab_size=11, width=8):
        self.vocab_size = vocab_size
        self.width = width
        self.traces = 0

    def init_params(self, seed=0):
        rng = np.random.default_rng(seed)
        shapes = {"embed_VD": (self.vocab_size, self.width), "mix_DD": (self.width, self.width)}
        shapes["head_DV"] = (self.width, self.vocab_size)
        return {
            name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()
        }

    def hidden(self, params, tokens_BT, *, remat=False):
        self.traces += 1
        layer = jax.checkpoint(self._layer) if remat else self._layer
        return layer(params, tokens_BT)

    def _layer(self, params, tokens_BT):
        seen_BTD = jnp.cumsum(params["embed_VD"][tokens_BT], axis=1)
        count_1T1 = jnp.arange(1.0, tokens_BT.shape[1] + 1.0)[None, :, None]
        return jnp.tanh(seen_BTD / count_1T1 @ params["mix_DD"])

    def logits(self, params, hidden_XD):
        return hidden_XD @ params["head_DV"]
