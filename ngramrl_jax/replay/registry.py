"""Drafters by name."""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import partial

from ngramrl_jax.host.draft import Rule
from ngramrl_jax.host.history import History
from ngramrl_jax.host.ngram import DEFAULT_RULE, NgramDrafter
from ngramrl_jax.host.ngram_trees import NgramTreeDrafter
from ngramrl_jax.host.no_draft import NoDrafter
from ngramrl_jax.host.peers import PEERS
from ngramrl_jax.host.protocol import Drafter
from ngramrl_jax.replay.oracle import OracleChain
from ngramrl_jax.trace.records import TraceHeader

Factory = Callable[[int, int], Drafter]

ORACLE = "oracle"


def factories(header: TraceHeader) -> dict[str, Factory]:
    """What makes each drafter, for so many rows and draft tokens; `ngram` as the run had it.

    `ngram_tree` drafts trees of as many nodes, `ngram_blind` is without the target's noise.
    """

    def ngram(rows: int, draft_tokens: int, rule: Rule = DEFAULT_RULE) -> Drafter:
        history = History(header.window, header.history_bytes)
        return NgramDrafter(rows, draft_tokens, history, rule)

    def ngram_tree(rows: int, draft_tokens: int) -> Drafter:
        history = History(header.window, header.history_bytes)
        return NgramTreeDrafter(rows, draft_tokens, history)

    return {
        "ngram": ngram,
        "ngram_tree": ngram_tree,
        "ngram_blind": partial(ngram, rule=Rule(noise=False)),
        "none": NoDrafter,
        **PEERS,
        ORACLE: OracleChain,
    }


def chosen(names: Sequence[str], header: TraceHeader) -> dict[str, Factory]:
    """The factories of the named drafters, in that order.

    Raises:
        ValueError: There is no drafter of that name.
    """
    known = factories(header)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, n=1, cutoff=0.0)
            raise ValueError(
                f"drafter: found {name}, allowed: {', '.join(known)}; nearest: {near[0]}"
            )
    return {name: known[name] for name in names}
