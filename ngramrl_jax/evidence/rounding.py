"""How far rounding may move this policy's log-probabilities, measured without the engine.

Two right computations of one logit differ because their matrix products have different shapes. How
much depends on the model, so it is measured: every weight is shaken by one unit in its last place,
in the arithmetic that the device really uses, and what that does to the log-probabilities of real
tokens is the scale of rounding. No cache, draft or engine takes part, so no fault of theirs can
widen the tolerance that it is judged by.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ngramrl_jax.evidence.plain_forward import PlainForward
from ngramrl_jax.evidence.same_tokens import TIE
from ngramrl_jax.protocols import Params
from ngramrl_jax.types import Rollout, Sampling

_COMPUTED = 2  # a difference is that of two computations
_COMPARED = 2 * _COMPUTED  # a near-tie is one between two scores, each computed twice


class Rounding(NamedTuple):
    """What rounding can do to a log-probability, in nats.

    Attributes:
        rms: Root mean square of a token's difference between two right computations, at most.
        tie: Largest difference of two scores between them, at most.
    """

    rms: float
    tie: float


def last_place(dtype: str) -> float:
    """One unit in the last place of 1, in the arithmetic of this device's matrix products.

    float32 products run in TF32 on a GPU and in bfloat16 on a TPU unless
    `jax_default_matmul_precision` asks for more.
    """
    eps = float(jnp.finfo(jnp.dtype(dtype)).eps)
    precision = getattr(jax.config, "jax_default_matmul_precision")  # noqa: B009, set at run time
    if dtype != "float32" or precision in ("highest", "float32"):
        return eps
    return {"gpu": 2.0**-10, "tpu": 2.0**-7}.get(jax.default_backend(), eps)


@jax.jit
def shaken(params: Params, unit: jax.Array, key: jax.Array) -> Params:
    """Every floating-point leaf times `1 ± unit`, the signs drawn independently from `key`."""
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(key, len(leaves))

    def shake(leaf: jax.Array, key: jax.Array) -> jax.Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        up = jax.random.bernoulli(key, shape=leaf.shape)
        exact = leaf.astype(jnp.float32)
        return (exact * jnp.where(up, 1 + unit, 1 - unit)).astype(leaf.dtype)

    return tree.unflatten([shake(leaf, key) for leaf, key in zip(leaves, keys, strict=True)])


def rounding_of(
    forward: PlainForward,
    params: Params,
    shaken_params: Params,
    rollouts: Sequence[Rollout],
    sampling: Sampling,
) -> Rounding:
    """Bounds on rounding, from what shaking the weights does to real tokens."""
    unfiltered = Sampling(sampling.temperature)  # at an edge of top-p a token jumps by much more
    own = [rollout.tokens_N[:, None] for rollout in rollouts]
    one, other = (
        np.concatenate([told.logp_NC for told in forward.score(p, rollouts, own, unfiltered)])
        for p in (params, shaken_params)
    )
    moved = np.abs(one - other)
    return Rounding(
        rms=max(TIE, _COMPUTED * float(np.sqrt(np.mean(moved**2)))),
        tie=max(TIE, _COMPARED * float(moved.max())),
    )
