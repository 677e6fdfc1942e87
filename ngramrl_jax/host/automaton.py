# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""A suffix automaton over the rollouts of each prompt: the compiled kernels.

A state is a set of substrings that end at the same places; its link leads to the longest suffix
of them that ends at more places. So the state reached by reading `context + token` knows how often
that string occurs, and the suffix links list the shorter contexts in order (Blumer et al. 1987).
Two things are kept apart: `insert` grows the structure, which never shrinks, and `weigh` adds to
or takes from the weights, so that a forgotten rollout leaves states of weight 0 that nothing
follows. All prompts share the arrays and have a root each; no path leads from one root to another.

Every text begins with `START`, which stands for the beginning of a response. It is a token like
any other to match on, and it is what the very first token is drafted from.

All kernels that read the automaton live in this file on purpose: Numba's cache on disk notices
changes in the file of a kernel, not in the files of the kernels it calls.

Legend: B rows, K draft budget, N response tokens, S capacity of a row's text.
"""

import numba
import numpy as np

from ngramrl_jax.host.arena import NONE, START, Arena, Records
from ngramrl_jax.types import Int32Array

kernel = numba.njit(nogil=True, cache=True)


@kernel
def _bucket(bucket_count, source, token):
    key = (np.uint64(source) << np.uint64(32)) | np.uint64(token + 1)
    key *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64((key >> np.uint64(32)) & np.uint64(bucket_count - 1))


@kernel
def _find(edges, buckets, source, token):
    edge = buckets[_bucket(buckets.size, source, token)]
    while edge != NONE and (edges[edge].source != source or edges[edge].token != token):
        edge = edges[edge].chained
    return edge


@kernel
def _add_edge(states, edges, buckets, used, source, token, target):
    edge = used[1]
    used[1] += 1
    bucket = _bucket(buckets.size, source, token)
    edges[edge].source = source
    edges[edge].token = token
    edges[edge].target = target
    edges[edge].sibling = states[source].edge
    edges[edge].chained = buckets[bucket]
    states[source].edge = edge
    buckets[bucket] = edge


@kernel
def _add_state(states, used, link, length, weight, latest):
    state = used[0]
    used[0] += 1
    states[state].link = link
    states[state].length = length
    states[state].weight = weight
    states[state].latest = latest
    states[state].edge = NONE
    states[state].visits = 0
    return state


@kernel
def _split(states, edges, buckets, used, state, token, target):
    """Moves the strings of `target` that are no longer than `state` plus one to a new state."""
    old = states[target]
    shorter = _add_state(states, used, old.link, states[state].length + 1, old.weight, old.latest)
    edge = old.edge
    while edge != NONE:
        _add_edge(states, edges, buckets, used, shorter, edges[edge].token, edges[edge].target)
        edge = edges[edge].sibling
    states[target].link = shorter
    while state != NONE:
        edge = _find(edges, buckets, state, token)
        if edge == NONE or edges[edge].target != target:
            break
        edges[edge].target = shorter
        state = states[state].link
    return shorter


@kernel
def _extend(states, edges, buckets, used, last, token):
    """Reads one more token of a text being inserted; returns the state of the text so far."""
    edge = _find(edges, buckets, last, token)
    if edge != NONE:
        target = edges[edge].target
        if states[target].length == states[last].length + 1:
            return target
        return _split(states, edges, buckets, used, last, token, target)
    new = _add_state(states, used, NONE, states[last].length + 1, 0, NONE)
    state = last
    while edge == NONE:
        _add_edge(states, edges, buckets, used, state, token, new)
        if states[state].link == NONE:
            states[new].link = state
            return new
        state = states[state].link
        edge = _find(edges, buckets, state, token)
    target = edges[edge].target
    if states[target].length != states[state].length + 1:
        target = _split(states, edges, buckets, used, state, token, target)
    states[new].link = target
    return new


@kernel
def insert(arena: Arena, root: int, tokens_N: Int32Array) -> int:
    """Adds the substrings of `START + tokens_N`, with weight 0, and returns the prompt's root.

    The caller makes the room (see `allocate`). A `root` of NONE makes a new one.
    """
    states, edges, buckets, used = arena
    if root == NONE:
        root = _add_state(states, used, NONE, 0, 0, NONE)
    last = _extend(states, edges, buckets, used, root, START)
    for token in tokens_N:
        last = _extend(states, edges, buckets, used, last, token)
    return root


@kernel
def _visit(states, waiting_of_length, state, visits):
    if states[state].visits == 0:
        length = states[state].length
        states[state].waiting = waiting_of_length[length]
        waiting_of_length[length] = state
    states[state].visits += visits


@kernel
def weigh(arena: Arena, root: int, tokens_N: Int32Array, change: int, serial: int) -> None:
    """Adds `change` for every occurrence of every substring of an inserted `START + tokens_N`.

    Visits pass down the links from the longest states to the shortest, each state once, so that
    a text which repeats itself without end costs no more than another.
    """
    states, edges, buckets, _ = arena
    longest = tokens_N.size + 1
    waiting_of_length = np.full(longest + 1, NONE, np.int32)
    prefix = root
    for position in range(-1, tokens_N.size):
        token = START if position < 0 else tokens_N[position]
        prefix = edges[_find(edges, buckets, prefix, token)].target
        _visit(states, waiting_of_length, prefix, 1)
    for length in range(longest, 0, -1):
        state = waiting_of_length[length]
        while state != NONE:
            states[state].weight += change * states[state].visits
            states[state].latest = max(states[state].latest, serial)
            if states[state].link != root:
                _visit(states, waiting_of_length, states[state].link, states[state].visits)
            states[state].visits = 0
            state = states[state].waiting
    states[root].latest = max(states[root].latest, serial)


@kernel
def _advance(states, edges, buckets, state, length, token):
    """Longest suffix of (a suffix of `length` tokens in `state`) + `token`: its state, length."""
    while True:
        edge = _find(edges, buckets, state, token)
        if edge != NONE:
            return edges[edge].target, length + 1
        if states[state].link == NONE:
            return state, 0
        state = states[state].link
        length = states[state].length


@kernel
def _read(states, edges, buckets, state, length, text_S, start, begin, end):
    """Advances over `text_S[begin:end]`, where `start - 1` stands for START."""
    for position in range(begin, end):
        token = START if position < start else text_S[position]
        state, length = _advance(states, edges, buckets, state, length, token)
    return state, length


@kernel
def _catch_up(states, edges, buckets, match, text_S, start, end):
    """Brings a row's match up to its text, afresh where the prompt's history has grown.

    A fresh match reads a short tail of the text first: if less than the tail matches, no more of
    the text would have; otherwise the tail doubles. So its cost is that of the match's length.
    """
    if match.seen == states[match.root].latest:
        state, length = _read(
            states, edges, buckets, match.state, match.length, text_S, start, match.end, end
        )
    else:
        match.seen = states[match.root].latest
        tail = 32
        begin = max(start - 1, end - tail)
        state, length = _read(states, edges, buckets, match.root, 0, text_S, start, begin, end)
        while length == end - begin and begin >= start:
            tail *= 2
            begin = max(start - 1, end - tail)
            state, length = _read(states, edges, buckets, match.root, 0, text_S, start, begin, end)
    match.state = state
    match.length = length
    match.end = end


@kernel
def _best_edge(states, edges, state):
    """The living edge of the highest weight; then of the latest rollout; then the lowest token."""
    best = NONE
    weight = latest = 0
    edge = states[state].edge
    while edge != NONE:
        child = states[edges[edge].target]
        if child.weight > weight or (
            child.weight == weight
            and weight > 0
            and (
                child.latest > latest
                or (child.latest == latest and edges[edge].token < edges[best].token)
            )
        ):
            best = edge
            weight = child.weight
            latest = child.latest
        edge = edges[edge].sibling
    return best


@kernel
def draft_rows(
    arena: Arena,
    matches_B: Records,
    text_BS: Int32Array,
    start_B: Int32Array,
    end_B: Int32Array,
    limit_B: Int32Array,
    min_match: int,
    draft_BK: Int32Array,
    length_B: Int32Array,
) -> None:
    """Drafts every row's continuation from its prompt's history into `draft_BK`, `length_B`.

    Each token continues the longest suffix of START + response + draft that the living history
    continues at all, by its best edge. A suffix shorter than `min_match` does not count, unless
    it is the whole of START + response + draft.
    """
    states, edges, buckets, _ = arena
    for row in range(matches_B.size):
        match = matches_B[row]
        limit = min(limit_B[row], draft_BK.shape[1])
        if match.root == NONE or limit <= 0:
            continue
        start, end = start_B[row], end_B[row]
        _catch_up(states, edges, buckets, match, text_BS[row], start, end)
        state, length = match.state, match.length
        for count in range(limit):
            whole = end - start + 1 + count
            edge = NONE
            while length >= min_match or length == whole:
                edge = _best_edge(states, edges, state)
                if edge != NONE:
                    break
                state = states[state].link
                length = 0 if state == NONE else states[state].length
            if edge == NONE:
                break
            draft_BK[row, count] = edges[edge].token
            length_B[row] = count + 1
            state = edges[edge].target
            length += 1
