"""Fast rollouts for RL post-training in JAX, drawn from exactly the policy's distribution.

Import what you need from the sub-packages; this module loads nothing, so that the host core
(`ngramrl_jax.host`) can be used in processes that must not load jax.
"""

__version__ = "0.1.0"
