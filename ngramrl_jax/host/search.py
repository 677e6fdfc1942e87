# ruff: noqa: ANN001, ANN201 (Numba infers the types of kernels)
"""Where the end of a text has stood before.

Legend: C positions of the searched text, S positions of the text whose end is looked for, G gram
sizes, H buckets, F found positions.
"""

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.host.log import GRAMS, NONE, START, bucket_of

LONGEST = 32  # tokens; matches of more count as equally good


@kernel
def match_length(text_C, position, text_S, start, end):
    """How many tokens up to `position` are the last ones of START + `text_S[start:end]`.

    LONGEST where all of that text is matched: nothing could be told apart any better.
    """
    length = 0
    while length < LONGEST and length <= position:
        at = end - 1 - length
        token = START if at < start else text_S[at]
        if text_C[position - length] != token:
            break
        length += 1
        if token == START:
            return LONGEST
    return length


@kernel
def longest_matches(
    text_C,
    owner_C,
    chain_GC,
    bucket_GH,
    owner,
    oldest,
    steps,
    text_S,
    start,
    end,
    found_F,
    longer_than=0,
):
    """Positions where the longest suffix of START + `text_S[start:end]` ends, newest first.

    Args:
        text_C: The text that is searched, with its chains, see `host.log`.
        owner_C: Whose each position is; of size 0 where all of the text is searched.
        chain_GC: Previous positions of the same bucket.
        bucket_GH: Newest positions.
        owner: Whose positions count.
        oldest: First position that counts.
        steps: Newest positions of a chain that are looked at.
        text_S: The text whose end is looked for.
        start: Where it starts.
        end: Where it ends.
        found_F: Filled with as many as there are, or fit.
        longer_than: Suffixes of no more tokens are of no use.

    Returns:
        How many, and the length of the suffix; (0, 0) where there are none.
    """
    for size in range(len(GRAMS) - 1, -1, -1):
        gram = min(GRAMS[size], end - start + 1)
        position = bucket_GH[
            size, bucket_of(text_S, start, end, GRAMS[size], owner, bucket_GH.shape[1])
        ]
        count, longest = 0, max(gram, longer_than + 1)
        for _ in range(steps):
            if position == NONE or position < oldest:
                break
            length = match_length(text_C, position, text_S, start, end)
            # Whose it is stands elsewhere in memory: asked only of the few that are long enough.
            if length >= longest and (owner_C.size == 0 or owner_C[position] == owner):
                if length > longest:
                    longest, count = length, 0
                if count < found_F.size:
                    found_F[count] = position
                    count += 1
                elif longest == LONGEST:
                    break
            position = chain_GC[size, position]
        if count > 0:
            return count, longest
        if longer_than >= GRAMS[size]:
            break  # a match that is longer still would have stood in this chain
    return 0, 0
