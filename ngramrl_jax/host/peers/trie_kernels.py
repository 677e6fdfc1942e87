# ruff: noqa: ANN001, ANN201, ANN202 (Numba infers the types of kernels)
"""How a counted suffix tree grows by a token and gives a text back.

One pool of nodes holds many trees. A tree has, for every position of each of its texts, the string
of up to `depth` tokens that starts there; a chain of tokens that always occur together is one node.
A node counts the (weights of the) positions whose string passes through it or ends in it.

Its label is a stretch of the newest text that passes through it. Texts leave a tree oldest first,
so a label's text outlives its node, and nothing has to be relabelled.

Children are kept most frequent first. Which of equals comes first decides drafts, so the rules are
those of ArcticInference: a new child goes last; a child that gains and was the first of its equals
goes to the front of its new equals, any other to their back; a child that loses goes to the front.

Legend: N nodes, H buckets, S token storage, X texts, O open texts, D depth, B rows, T tokens.
"""

from typing import Any, NamedTuple

import numpy as np

from ngramrl_jax.host.kernel import kernel
from ngramrl_jax.types import Int32Array

NONE = -1

NODE = np.dtype(
    [
        ("count", np.int32),
        ("token", np.int32),  # first of the label
        ("text", np.int32),  # where the label stands
        ("start", np.int32),
        ("length", np.int32),
        ("parent", np.int32),  # NONE at a root
        ("first", np.int32),  # children, most frequent first
        ("last", np.int32),
        ("next", np.int32),  # sibling; of a free node, the next free one
        ("previous", np.int32),
        ("chained", np.int32),  # next node of the same bucket
    ]
)
TEXT = np.dtype(
    [
        ("serial", np.int64),  # newer texts have larger ones
        ("at", np.int64),  # of its first token in the storage
        ("length", np.int32),
        ("capacity", np.int32),
        ("root", np.int32),
        ("weight", np.int32),
        ("open", np.int32),  # which row of `ends_OD` it has; NONE once closed
    ]
)

Records = Any  # structured arrays, whose fields type checkers do not know


class Pool(NamedTuple):
    """The arrays that all trees share.

    Attributes:
        nodes_N: Of type `NODE`.
        buckets_H: First node of each bucket of the hash table over (parent, token).
        tokens_S: The texts.
        texts_X: Of type `TEXT`.
        ends_OD: Node in which the string from position p of an open text ends, at p modulo D.
        used: How many nodes were ever in use, and the first free one among them.
    """

    nodes_N: Records
    buckets_H: Int32Array
    tokens_S: Int32Array
    texts_X: Records
    ends_OD: Int32Array
    used: Int32Array


@kernel
def _bucket(parent, token, buckets):
    key = (np.uint64(parent) << np.uint64(32)) | np.uint64(token)
    key *= np.uint64(0x9E3779B97F4A7C15)
    return np.int64((key >> np.uint64(32)) & np.uint64(buckets - 1))


@kernel
def find_child(pool, node, token):
    """The child of `node` whose label starts with `token`, or NONE."""
    nodes = pool.nodes_N
    child = nodes[node].first
    if child != nodes[node].last:
        child = pool.buckets_H[_bucket(node, token, pool.buckets_H.size)]
        while child != NONE and (nodes[child].parent != node or nodes[child].token != token):
            child = nodes[child].chained
    elif child != NONE and nodes[child].token != token:  # most nodes have one child at most
        child = NONE
    return child


@kernel
def _enter(pool, node):
    """Puts a node into the hash table."""
    one = pool.nodes_N[node]
    slot = _bucket(one.parent, one.token, pool.buckets_H.size)
    one.chained = pool.buckets_H[slot]
    pool.buckets_H[slot] = node


@kernel
def _leave(pool, node):
    """Takes a node out of the hash table."""
    nodes = pool.nodes_N
    slot = _bucket(nodes[node].parent, nodes[node].token, pool.buckets_H.size)
    if pool.buckets_H[slot] == node:
        pool.buckets_H[slot] = nodes[node].chained
        return
    before = pool.buckets_H[slot]
    while nodes[before].chained != node:
        before = nodes[before].chained
    nodes[before].chained = nodes[node].chained


@kernel
def rehash(pool):
    """Fills an empty hash table with the nodes that stand in a tree."""
    for node in range(pool.used[0]):
        if pool.nodes_N[node].count > 0 and pool.nodes_N[node].parent != NONE:
            _enter(pool, node)


@kernel
def new_node(pool, parent, token, text, start, count):
    """A node with a label of one token, no children and no place among siblings."""
    node = pool.used[1]
    if node == NONE:
        node = pool.used[0]
        pool.used[0] += 1
    else:
        pool.used[1] = pool.nodes_N[node].next
    one = pool.nodes_N[node]
    one.count, one.token, one.text, one.start, one.length = count, token, text, start, 1
    one.parent = parent
    one.first = one.last = one.next = one.previous = one.chained = NONE
    return node


@kernel
def free_node(pool, node):
    """Makes a node available again."""
    pool.nodes_N[node].count = 0
    pool.nodes_N[node].next = pool.used[1]
    pool.used[1] = node


@kernel
def _attach(nodes, node, successor):
    """Places a node before a sibling; last, where that is NONE."""
    one, above = nodes[node], nodes[nodes[node].parent]
    one.next = successor
    one.previous = above.last if successor == NONE else nodes[successor].previous
    if one.previous == NONE:
        above.first = node
    else:
        nodes[one.previous].next = node
    if successor == NONE:
        above.last = node
    else:
        nodes[successor].previous = node


@kernel
def _detach(nodes, node):
    one, above = nodes[node], nodes[nodes[node].parent]
    if one.previous == NONE:
        above.first = one.next
    else:
        nodes[one.previous].next = one.next
    if one.next == NONE:
        above.last = one.previous
    else:
        nodes[one.next].previous = one.previous


@kernel
def _gain(nodes, node):
    """Counts one more."""
    one = nodes[node]
    one.count += 1
    ahead = one.previous
    if ahead == NONE or nodes[ahead].count > one.count:
        return
    equals = nodes[ahead].count
    while nodes[ahead].previous != NONE and nodes[nodes[ahead].previous].count == equals:
        ahead = nodes[ahead].previous
    _detach(nodes, node)
    _attach(nodes, node, ahead)


@kernel
def _lose(nodes, node):
    """Counts one less."""
    one = nodes[node]
    behind = one.next
    if behind != NONE and nodes[behind].count == one.count:
        while behind != NONE and nodes[behind].count == one.count:
            behind = nodes[behind].next
        _detach(nodes, node)
        _attach(nodes, node, behind)
    one.count -= 1


@kernel
def _supplant(pool, old, new):
    """Gives the place of `old`, in the table and among its siblings, to its child `new`.

    The other way round, when `new` is a fresh node that takes the place of `old` above it.
    """
    nodes = pool.nodes_N
    _leave(pool, old)
    nodes[new].parent, nodes[new].token = nodes[old].parent, nodes[old].token
    _attach(nodes, new, old)
    _detach(nodes, old)
    _enter(pool, new)


@kernel
def _merge(pool, node, child):
    """An only child that counts as much as its parent becomes one node with it."""
    nodes = pool.nodes_N
    _leave(pool, child)
    nodes[child].length += nodes[node].length
    nodes[child].start -= nodes[node].length
    _supplant(pool, node, child)
    free_node(pool, node)


@kernel
def _split(pool, child):
    """The first token of a child's label becomes a node of its own, above it."""
    nodes = pool.nodes_N
    one = nodes[child]
    top = new_node(pool, one.parent, one.token, one.text, one.start, one.count)
    _supplant(pool, child, top)
    _shorten(pool, child)
    one.parent = top
    _attach(nodes, child, NONE)
    _enter(pool, child)
    return top


@kernel
def _shorten(pool, node):
    """Takes the first token off a label; the node is in no table meanwhile."""
    one = pool.nodes_N[node]
    one.start += 1
    one.length -= 1
    one.token = pool.tokens_S[pool.texts_X[one.text].at + one.start]


@kernel
def _label(pool, node, text, end):
    """The label comes from `text`, which passes through up to `end`, if that is the newer."""
    one = pool.nodes_N[node]
    if pool.texts_X[text].serial > pool.texts_X[one.text].serial:
        one.text, one.start = text, end - one.length


@kernel
def _advance(pool, node, text, token, end):
    """A string of `text` that ended in `node` goes on with `token`; where does it end now?

    Args:
        pool: The arrays.
        node: Where the string ended.
        text: Whose string it is.
        token: The text's last token, already stored.
        end: Length of the text with it.
    """
    nodes, weight = pool.nodes_N, pool.texts_X[text].weight
    one = nodes[node]
    inner = one.parent != NONE
    child = find_child(pool, node, token)
    if child == NONE:
        child = new_node(pool, node, token, text, end - 1, 1)
        _attach(nodes, child, NONE)
        _enter(pool, child)
        for _ in range(weight - 1):
            _gain(nodes, child)
        return child
    if inner and one.count == nodes[child].count + weight:  # all others went on to the child
        if nodes[child].length == 1:
            nodes[child].count += weight
            _merge(pool, node, child)
            _label(pool, child, text, end)
            return child
        one.length += 1
        _label(pool, node, text, end)
        _leave(pool, child)
        _shorten(pool, child)
        _enter(pool, child)
        return node
    if nodes[child].length > 1:
        child = _split(pool, child)
    for _ in range(weight):
        _gain(nodes, child)
    _label(pool, child, text, end)
    return child


@kernel
def _append(pool, text, token):
    """The text goes on with a token: so do the strings from its last D positions."""
    nodes, one = pool.nodes_N, pool.texts_X[text]
    root, weight = one.root, one.weight
    ends_D = pool.ends_OD[one.open]
    depth = ends_D.size
    position = one.length
    pool.tokens_S[one.at + position] = token
    one.length += 1
    ends_D[position % depth] = root
    nodes[root].count += weight
    strings = min(depth, position + 1)
    slot = (position + 1 - strings) % depth
    for _ in range(strings):
        node = ends_D[slot]
        if nodes[node].count == weight and node != root:
            nodes[node].length += 1  # nothing else passes here: the label grows
        else:
            ends_D[slot] = _advance(pool, node, text, token, position + 1)
        slot = slot + 1 if slot + 1 < depth else 0


@kernel
def append_rows(pool, text_B, tokens_BT, count_B):
    """Text `text_B[r]` goes on with `tokens_BT[r, :count_B[r]]`; NONE stands for no text."""
    for row in range(text_B.size):
        if text_B[row] != NONE:
            for position in range(count_B[row]):
                _append(pool, text_B[row], tokens_BT[row, position])


@kernel
def weaken(pool, text):
    """The text counts one less; with a weight of 0 it has left the tree."""
    nodes = pool.nodes_N
    one = pool.texts_X[text]
    for start in range(one.length):
        node = one.root
        nodes[node].count -= 1
        position = start
        while position < one.length:
            child = find_child(pool, node, pool.tokens_S[one.at + position])
            if child == NONE:  # the string was D tokens long
                break
            if nodes[child].count == 1:
                _detach(nodes, child)
                _leave(pool, child)
                free_node(pool, child)
                break
            _lose(nodes, child)
            position += nodes[child].length
            node = child
        only = nodes[node].first
        if (
            nodes[node].parent != NONE
            and only != NONE
            and only == nodes[node].last
            and nodes[only].count == nodes[node].count
        ):
            _merge(pool, node, only)
    one.weight -= 1
