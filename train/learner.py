"""The update: one jitted function from state and batch to state and metrics.

The supervised warm start and every RL objective run through it; they differ in the batch and in
the `Objective`. The batch comes as micro-batches `[M, B, ...]`, whose gradients are added up by a
scan. An update whose loss or gradient is not finite is refused on the device: the state stays as
it was, and `refused` is 1.

Legend: M micro-batches, B rows, R response positions.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from ngramrl_jax.types import Sampling
from train.adamw import clip_by_global_norm, scale_by_adam
from train.batching import Batch
from train.correction import Correction, importance_weights
from train.logprobs import Params, TokenLogProbs, TrainablePolicy, token_log_probs
from train.objectives import Objective, token_losses

Metrics = dict[str, jax.Array]
NO_CORRECTION = Correction()
EPSILON = 1e-8  # of Adam


@dataclass(frozen=True)
class OptimizerSettings:
    """AdamW behind a clip of the global norm.

    Attributes:
        learning_rate: Peak.
        warmup_steps: Updates over which the rate rises to the peak in a line; the first is not 0.
        total_steps: Where above 0, the rate then falls by a cosine to a tenth of the peak at this
            update; else it stays.
        clip_norm: The gradient's global norm at most.
        weight_decay: Decoupled, on all parameters.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
    """

    learning_rate: float
    warmup_steps: int = 0
    total_steps: int = 0
    clip_norm: float = 1.0
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 < self.learning_rate < float("inf"):
            raise ValueError(f"learning_rate: found {self.learning_rate}, allowed: above 0, finite")
        if self.clip_norm <= 0.0:
            raise ValueError(f"clip_norm: found {self.clip_norm}, allowed: above 0")
        if self.warmup_steps < 0 or 0 < self.total_steps <= self.warmup_steps:
            raise ValueError(
                f"warmup_steps: found {self.warmup_steps}, allowed: 0 or more, and fewer than "
                f"total_steps ({self.total_steps}) where that is set"
            )


def make_optimizer(settings: OptimizerSettings) -> optax.GradientTransformation:
    """The optax chain of the settings."""
    peak, warmup = settings.learning_rate, settings.warmup_steps
    schedule = optax.constant_schedule(peak)
    if settings.total_steps:
        schedule = optax.cosine_decay_schedule(peak, settings.total_steps - warmup, alpha=0.1)
    if warmup:
        rise = optax.linear_schedule(peak / (warmup + 1), peak, warmup)
        schedule = optax.join_schedules([rise, schedule], [warmup])
    return optax.chain(
        clip_by_global_norm(settings.clip_norm),
        optax.chain(
            scale_by_adam(settings.beta1, settings.beta2, EPSILON),
            optax.add_decayed_weights(settings.weight_decay),
            optax.scale_by_learning_rate(schedule),
        ),
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that an update changes. Donated: after `update` the old one is gone.

    Attributes:
        params: float32 master weights; the policy decides what it computes in.
        opt_state: Of the optax chain.
        step: int32, updates applied; refused ones do not count.
    """

    params: Params
    opt_state: optax.OptState
    step: jax.Array


class Learner:
    """Makes updates for one policy and one objective.

    Args:
        policy: The model.
        optimizer: Settings, or an optax transformation of your own.
        objective: What to minimise.
        sampling: The distribution that rollouts are drawn from.
        correction: What the gap between rollout and training does to the loss.
        chunk_tokens: Tokens that go through the head at once.
        remat: Recompute layers in the backward pass.
        param_shardings: Pytree of `NamedSharding` like the parameters, for a mesh. The moments of
            the optimizer follow them; the rest of the state is replicated.
        batch_sharding: Of the `[M, B, ...]` arrays of a batch; rows are axis 1.
    """

    def __init__(
        self,
        policy: TrainablePolicy,
        optimizer: OptimizerSettings | optax.GradientTransformation,
        objective: Objective,
        sampling: Sampling,
        *,
        correction: Correction = NO_CORRECTION,
        chunk_tokens: int = 1024,
        remat: bool = True,
        param_shardings: Any = None,
        batch_sharding: NamedSharding | None = None,
    ) -> None:
        if isinstance(optimizer, OptimizerSettings):
            optimizer = make_optimizer(optimizer)
        self._policy = policy
        self._optimizer = optimizer
        self._objective = objective
        self._sampling = sampling
        self._correction = correction
        self._chunk_tokens = chunk_tokens
        self._remat = remat
        self._batch_sharding = batch_sharding
        self._state_shardings = _state_shardings(optimizer, param_shardings)
        everywhere = None if param_shardings is None else self._state_shardings.step
        self._update = jax.jit(
            self._updated, donate_argnums=0, out_shardings=(self._state_shardings, everywhere)
        )
        self._log_probs = jax.jit(self._all_log_probs, out_shardings=batch_sharding)

    def init(self, params: Params) -> TrainState:
        """A fresh state. The parameters are copied, since updates give their state away."""
        if self._state_shardings is not None:
            params = jax.device_put(params, self._state_shardings.params)
        return jax.jit(self._fresh, out_shardings=self._state_shardings)(params)

    def _fresh(self, params: Params) -> TrainState:
        params = jax.tree.map(lambda leaf: jnp.array(leaf, dtype=jnp.float32), params)
        return TrainState(params, self._optimizer.init(params), jnp.zeros((), jnp.int32))

    def update(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """One update.

        Args:
            state: Is donated and must not be used again.
            batch: From `train.batching`. Without `old_logp_BR` the current log-probabilities are
                the old ones: right when this is the batch's only update.

        Returns:
            The new state, and metrics as device scalars: `loss grad_norm entropy clip_frac
            outside_support refused`, with rollout log-probabilities `logp_gap_mean logp_gap_max
            tis_mean`, with reference ones `kl`. All are means over response tokens but loss,
            grad_norm, logp_gap_max and refused. `outside_support` is the share of tokens that
            top-k or top-p leaves out of this forward's distribution, `tis_mean` the importance
            weight of `train.correction`.

        Raises:
            ValueError: The objective has a KL and the batch no reference log-probabilities, or the
                gap is to be corrected and the batch has none of the rollout.
        """
        if self._objective.kl > 0.0 and batch.reference_logp_BR is None:
            raise ValueError("reference_logp_BR: found none, allowed: log_probs of the reference")
        if self._correction.mode != "off" and batch.rollout_logp_BR is None:
            raise ValueError("rollout_logp_BR: found none, allowed: what the rollouts recorded")
        return self._update(state, self._placed(batch))

    def abstract_state(self, params: Params) -> TrainState:
        """The state that `init` would make, with shapes, dtypes and shardings alone."""
        state = jax.eval_shape(self._fresh, params)
        if self._state_shardings is None:
            return state
        return jax.tree.map(
            lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place),
            state,
            self._state_shardings,
        )

    def trace(self, params: Params, batch: Batch) -> jax.stages.Traced:
        """The update for abstract parameters and batch, to be looked at or compiled."""
        return self._update.trace(self.abstract_state(params), batch)

    def log_probs(self, params: Params, batch: Batch) -> jax.Array:
        """float32 log-probabilities laid out as the batch's mask, 0 off it.

        For `old_logp_BR` where a batch is used for several updates, and for `reference_logp_BR`.
        """
        return self._log_probs(params, self._placed(batch))

    def _placed(self, batch: Batch) -> Batch:
        if self._batch_sharding is None:
            return batch
        sharding = self._batch_sharding

        def place(x: Any) -> jax.Array:
            if isinstance(x, jax.Array):  # from `log_probs`
                return x
            # every process has the whole batch and takes its rows of it
            return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

        return jax.tree.map(place, batch)

    def _updated(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        grad_of = jax.value_and_grad(self._micro_loss, has_aux=True)

        def add(grads: Params, micro: Batch) -> tuple[Params, Metrics]:
            (_, sums), micro_grads = grad_of(state.params, micro)
            return self._split_as_params(jax.tree.map(jnp.add, grads, micro_grads)), sums

        zeros = self._split_as_params(jax.tree.map(jnp.zeros_like, state.params))
        grads, sums_M = lax.scan(add, zeros, batch)
        metrics = _reduce(sums_M, jnp.sum(batch.mask_BR, dtype=jnp.float32))
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(metrics["loss"]) & jnp.isfinite(grad_norm)

        def applied(state: TrainState, grads: Params) -> TrainState:
            with jax.numpy_dtype_promotion("standard"):  # optax: Python floats to int32 counts
                changes, opt_state = self._optimizer.update(grads, state.opt_state, state.params)
            params = optax.apply_updates(state.params, changes)
            return TrainState(params, opt_state, state.step + 1)

        kept = lax.cond(finite, applied, lambda state, grads: state, state, grads)
        refused = (~finite).astype(jnp.float32)
        return kept, metrics | {"grad_norm": grad_norm, "refused": refused}

    def _split_as_params(self, grads: Params) -> Params:
        """Gradients lie where their parameters do; the compiler might add them up whole."""
        if self._state_shardings is None:
            return grads
        return lax.with_sharding_constraint(grads, self._state_shardings.params)

    def _micro_loss(self, params: Params, batch: Batch) -> tuple[jax.Array, Metrics]:
        """The micro-batch's part of the loss, and sums over its tokens for the metrics."""
        said = self._token_log_probs(params, batch)
        mask_BR = batch.mask_BR
        old_BR = lax.stop_gradient(said.logp_BR) if batch.old_logp_BR is None else batch.old_logp_BR
        factor_BR = None
        if batch.rollout_logp_BR is not None:
            factor_BR = importance_weights(self._correction, old_BR, batch.rollout_logp_BR, mask_BR)
        losses = token_losses(
            self._objective,
            said.logp_BR,
            old_BR,
            batch.reference_logp_BR,
            batch.advantage_B,
            mask_BR,
            None if self._correction.mode == "off" else factor_BR,
        )
        loss = jnp.sum(batch.weight_BR * losses.loss_BR)

        def total(x_BR: jax.Array) -> jax.Array:
            return jnp.sum(jnp.where(mask_BR, x_BR.astype(jnp.float32), 0.0))

        sums = {
            "loss": loss,
            "entropy": total(said.entropy_BR),
            "clip_frac": total(losses.clipped_BR),
            "outside_support": total(said.outside_BR),
        }
        if losses.kl_BR is not None:
            sums["kl"] = total(losses.kl_BR)
        if factor_BR is not None and batch.rollout_logp_BR is not None:
            sums["tis_mean"] = total(factor_BR)
            gap_BR = jnp.where(mask_BR, jnp.abs(said.logp_BR - batch.rollout_logp_BR), 0.0)
            sums["logp_gap_mean"] = jnp.sum(gap_BR)
            sums["logp_gap_max"] = jnp.max(gap_BR)
        return loss, lax.stop_gradient(sums)

    def _all_log_probs(self, params: Params, batch: Batch) -> jax.Array:
        def micro(batch: Batch) -> jax.Array:
            return jnp.where(batch.mask_BR, self._token_log_probs(params, batch).logp_BR, 0.0)

        return lax.map(micro, batch)

    def _token_log_probs(self, params: Params, batch: Batch) -> TokenLogProbs:
        return token_log_probs(
            self._policy,
            params,
            batch.tokens_BT,
            batch.start_B,
            batch.mask_BR.shape[1],
            self._sampling,
            chunk_tokens=self._chunk_tokens,
            remat=self._remat,
        )


def _reduce(sums_M: Metrics, tokens: jax.Array) -> Metrics:
    """Sums of micro-batches to the batch's metrics. A batch without a token reports zeros."""
    whole = {"loss": jnp.sum, "logp_gap_max": jnp.max}
    tokens = jnp.maximum(tokens, 1.0)
    return {
        name: whole[name](x_M) if name in whole else jnp.sum(x_M) / tokens
        for name, x_M in sums_M.items()
    }


def _state_shardings(optimizer: optax.GradientTransformation, param_shardings: Any) -> Any:
    """Shardings of the whole state: moments like their parameter, scalars replicated."""
    if param_shardings is None:
        return None
    replicated: Any = NamedSharding(jax.tree.leaves(param_shardings)[0].mesh, PartitionSpec())
    # Only the tree's shape matters here, so scalars stand in for the parameters.
    stand_in = jax.tree.map(lambda _: jax.ShapeDtypeStruct((), jnp.float32), param_shardings)
    opt_shardings = optax.tree.map_params(
        optimizer,
        lambda _, sharding: sharding,
        jax.eval_shape(optimizer.init, stand_in),
        param_shardings,
        transform_non_params=lambda _: replicated,
    )
    return TrainState(param_shardings, opt_shardings, replicated)
