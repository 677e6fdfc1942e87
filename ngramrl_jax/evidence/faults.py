"""Planted faults: a check that finds nothing wrong must be seen to find what is wrong.

Each fault replaces a function inside the engine for a while, so that everything else, the programs,
the samples and the verdict on them, is as in the real examination. Programs are traced when an
engine first runs: make the engine while the fault is planted.

Legend: B rows, K draft tokens, T = K + 1 tokens of a round, V vocabulary, N rollouts.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

import jax.numpy as jnp
from jax import Array

from ngramrl_jax.rollout import admit, round
from ngramrl_jax.verify.coupled import verify_coupled
from ngramrl_jax.verify.keyed import gumbel, position_keys, row_keys, sample
from ngramrl_jax.verify.rejection import DraftLaw, acceptance_uniform
from ngramrl_jax.verify.verdict import Verdict, accepted_prefix, with_log_probs


@contextmanager
def planted(*places: tuple[ModuleType, str, Callable]) -> Iterator[None]:
    """Replaces the named functions of the modules until the block ends."""
    with ExitStack() as stack:
        for module, name, fault in places:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, fault)
        yield


def resampling_from_p(
    logp_BTV: Array, draft_BK: Array, length_B: Array, key_BT: Array, q: DraftLaw | None
) -> Verdict:
    """`verify_rejection`, but after a rejection the token is drawn from p, not the residual."""
    del q
    vocab = logp_BTV.shape[-1]
    known_BK = (draft_BK >= 0) & (draft_BK < vocab)
    safe_BK1 = jnp.clip(draft_BK, 0, vocab - 1)[..., None]
    p_BK = jnp.exp(jnp.take_along_axis(logp_BTV[:, :-1], safe_BK1, axis=-1)[..., 0])
    uniform_BK = acceptance_uniform(key_BT[:, :-1])
    accepted_B = accepted_prefix(known_BK & (uniform_BK < p_BK), length_B)
    emitted_BT = sample(logp_BTV, gumbel(key_BT, vocab))
    offset_1T = jnp.arange(emitted_BT.shape[1], dtype=jnp.int32)[None]
    draft_BT = jnp.pad(draft_BK, ((0, 0), (0, 1)))
    tokens_BT = jnp.where(offset_1T < accepted_B[:, None], draft_BT, emitted_BT)
    return with_log_probs(tokens_BT, accepted_B, logp_BTV)


def one_position_early(
    logp_BTV: Array, draft_BK: Array, length_B: Array, noise_BTV: Array
) -> Verdict:
    """`verify_coupled`, but behind a draft token it reads the logits of the place before."""
    early_BTV = jnp.concatenate([logp_BTV[:, :1], logp_BTV[:, :-1]], axis=1)
    return verify_coupled(early_BTV, draft_BK, length_B, noise_BTV)


def row_keys_without(*forgotten: str) -> Callable[..., Array]:
    """`row_keys` that gives pairs of siblings, all prompts or all steps the same key.

    Args:
        forgotten: Some of "siblings", "prompts", "steps".
    """

    def faulty(seed: Array, step: Array, prompt_N: Array, sibling_N: Array, attempt_N: Array):  # noqa: ANN202
        sibling_N = sibling_N // 2 if "siblings" in forgotten else sibling_N
        prompt_N = jnp.zeros_like(prompt_N) if "prompts" in forgotten else prompt_N
        step = jnp.zeros_like(step) if "steps" in forgotten else step
        return row_keys(seed, step, prompt_N, sibling_N, attempt_N)

    return faulty


def one_key_for_all_positions(key_B: Array, position_B: Array, count: int) -> Array:
    """`position_keys`, but every token of a row has the noise of position 0."""
    one_B1 = position_keys(key_B, jnp.zeros_like(position_B), 1)
    return jnp.broadcast_to(one_B1, (len(key_B), count))


RESIDUAL = ((round, "verify_rejection", resampling_from_p),)
EARLY_LOGITS = ((round, "verify_coupled", one_position_early),)
SHARED_KEYS = (
    (admit, "row_keys", row_keys_without("siblings", "prompts", "steps")),
    (round, "position_keys", one_key_for_all_positions),
)
