"""In which order a step's requests enter the slots. Tokens do not depend on it; speed does."""

from collections.abc import Mapping, Sequence

from ngramrl_jax.types import RolloutRequest


def wave_order(
    requests: Sequence[RolloutRequest], expected_tokens: Mapping[int, float], wave: int = 1
) -> list[RolloutRequest]:
    """Groups in waves of `wave` siblings, and in each wave the longest expected responses first.

    Later siblings then draft from finished ones already in the first epoch, and no long response
    starts last and decodes alone.

    Args:
        requests: In any order.
        expected_tokens: Response length by prompt id; missing prompts count as 0.
        wave: Siblings of a group in one wave; 0 keeps the order as it is.

    Returns:
        The same requests; ties keep their order by prompt id, then sibling.
    """
    if not wave:
        return list(requests)
    return sorted(
        requests,
        key=lambda r: (
            r.sibling // wave,
            -expected_tokens.get(r.prompt_id, 0.0),
            r.prompt_id,
            r.sibling,
        ),
    )
