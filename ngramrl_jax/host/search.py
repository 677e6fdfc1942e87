# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""Where the end of a text has stood before.

Legend: C positions of the searched text, S positions of the text whose end is looked for, G gram
sizes, H buckets, F found positions.
"""

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.host.log import GRAMS, NONE, START, bucket_of

LONGEST = 32  # tokens; matches of more count as equally good
SURROUNDINGS = 16  # tokens before a place that are compared, one by one
TOLERANCE = 2  # of them


@kernel
def match_length(text_C, position, text_S, start, end):
    """How many tokens up to `position` are the last ones of START + `text_S[start:end]`.

    LONGEST where all of that text is matched: nothing could be told apart any better.
    """
    most = min(LONGEST, position + 1, end - start)
    length = 0
    while length < most and text_C[position - length] == text_S[end - 1 - length]:
        length += 1
    whole = length == end - start and length <= position and text_C[position - length] == START
    return LONGEST if whole else length


@kernel
def likeness(text_C, position, text_S, start, end):
    """How many of the last tokens up to `position` stand in the same place before `end`.

    The first one that differs ends a match, but not this: a text that went the same way but for a
    word or two is the better guide to how it goes on.
    """
    size = min(SURROUNDINGS, position + 1, end - start)
    # Two passes without a way out, which compilers turn into a few instructions.
    begin = size
    for back in range(size):
        if text_C[position - back] == START:
            begin = min(begin, back)
    same = 0
    for back in range(begin):
        same += text_C[position - back] == text_S[end - 1 - back]
    both = begin == end - start < SURROUNDINGS and begin <= position
    return same + (both and text_C[position - begin] == START)


@kernel
def _rank(found_F, alike_F, count, position, alike):
    """Enters a position behind those that are as much alike or more; returns how many there are."""
    if count == found_F.size:
        if alike <= alike_F[count - 1]:
            return count
        count -= 1
    place = count
    while place > 0 and alike_F[place - 1] < alike:
        found_F[place], alike_F[place] = found_F[place - 1], alike_F[place - 1]
        place -= 1
    found_F[place], alike_F[place] = position, alike
    return count + 1


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
    alike_F,
    longer_than=0,
):
    """Positions where the longest suffix of START + `text_S[start:end]` ends.

    Those come first whose surroundings are most alike, of equal ones the newest; those that are
    less alike by more than `TOLERANCE` tokens are left out.

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
        alike_F: Scratch, no shorter.
        longer_than: Suffixes of no more tokens are of no use.

    Returns:
        How many, and the length of the suffix; (0, 0) where there are none.
    """
    for size in range(len(GRAMS) - 1, -1, -1):
        least = max(min(GRAMS[size], end - start + 1), longer_than + 1)
        bucket = bucket_of(text_S, start, end, GRAMS[size], owner, bucket_GH.shape[1])
        count, longest = _walk(
            text_C, owner_C, chain_GC[size], bucket_GH[size, bucket],
            owner, oldest, steps, text_S, start, end, least, found_F, alike_F,
        )  # fmt: skip
        while count > 1 and alike_F[count - 1] < alike_F[0] - TOLERANCE:
            count -= 1
        if count > 0:
            return count, longest
        if longer_than >= GRAMS[size]:
            break  # a match that is longer still would have stood in this chain
    return 0, 0


@kernel
def _walk(
    text_C,
    owner_C,
    chain_C,
    position,
    owner,
    oldest,
    steps,
    text_S,
    start,
    end,
    least,
    found_F,
    alike_F,
):
    """The longest matches of at least so many tokens on one chain, the most alike first."""
    count, longest = 0, least
    for _ in range(steps):
        if position == NONE or position < oldest:
            break
        before = chain_C[position]  # asked for early: it stands elsewhere in memory
        # A match that is long enough holds this token too. Most places do not.
        back = min(longest, end - start + 1) - 1
        if position < back or text_C[position - back] != (
            START if end - 1 - back < start else text_S[end - 1 - back]
        ):
            position = before
            continue
        length = match_length(text_C, position, text_S, start, end)
        # Whose it is stands elsewhere in memory: asked only of the few that are long enough.
        if length >= longest and (owner_C.size == 0 or owner_C[position] == owner):
            if length > longest:
                longest, count = length, 0
            if length == LONGEST and count == found_F.size:
                break
            alike = 0
            if length < LONGEST:
                alike = likeness(text_C, position, text_S, start, end)
            count = _rank(found_F, alike_F, count, position, alike)
        position = before
    return count, longest
