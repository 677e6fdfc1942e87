"""The table policy of the library's own evidence, and the law of its complete responses.

Legend: V vocabulary.
"""

from itertools import product

import numpy as np

from ngramrl_jax.evidence.table_policy import TablePolicy, random_table

__all__ = ["TablePolicy", "random_table", "response_law"]


def response_law(
    adjusted_VVV: np.ndarray, prompt: list[int], stop: int, longest: int
) -> dict[tuple[int, ...], float]:
    """Probability of every complete response, given adjusted probabilities `[V, V, V]`."""
    vocab = adjusted_VVV.shape[0]
    law = {}
    for length in range(1, longest + 1):
        for tokens in product(range(vocab), repeat=length):
            ended = tokens[-1] == stop
            if stop in tokens[:-1] or not (ended or length == longest):
                continue
            context = [0, *prompt]
            probability = 1.0
            for token in tokens:
                probability *= adjusted_VVV[context[-2], context[-1], token]
                context.append(token)
            law[tokens] = probability
    return law
