"""A plan in words."""

from train.planning import Plan


def describe(plan: Plan, limit: int) -> str:
    """The lines that `train/plan.py` prints; `limit` is the bytes of one device."""
    held = {
        "parameters (float32)": plan.parameters,
        "optimizer": plan.optimizer,
        "weights of rollouts": plan.rollout_weights,
        f"cache of {plan.slots} slots": plan.cache,
        "cache of prompts": plan.prefixes,
        "caches of evaluation": plan.evaluation,
        "temporary, round": plan.round_temporary,
        "temporary, update": plan.update_temporary,
        "peak while sampling": plan.rollout_peak,
        "peak while training": plan.update_peak,
    }
    lines = [f"each of {plan.devices} devices, bytes:"]
    lines += [f"  {name:<24}{size:>18,}  {size / 1e9:8.2f} GB" for name, size in held.items()]
    lines.append(
        f"operations of a round    {plan.round_flops:.3e}, of an update {plan.update_flops:.3e}"
    )
    verdict = "fits" if plan.peak <= limit else "does NOT fit"
    lines.append(
        f"{verdict} {limit / 1e9:.0f} GB: {plan.peak / 1e9:.1f} GB at the peak; "
        f"rollout.slots may be up to {plan.most_slots(limit)}"
    )
    return "\n".join(lines)
