# ruff: noqa: ANN001, ANN202 (Numba infers the types of private kernels)
"""Look-ups for the outcomes of a round in flight: the drafts that rows will want next.

An entry's draft is the very one that the drafter would propose after it was told the outcome, for
it is made by the same kernel on the same text. The outcomes of a row share the text that they have
in common and its chains: both grow with j, and are as before in the end.

Legend: B rows, K draft tokens, F entries of a row, X candidates of one position, S positions of a
row's text, G gram sizes, H buckets.
"""

from ngramrl_jax.host.calibration import Flight
from ngramrl_jax.host.draft import Rows, Rule, draft_row, empty_scratch
from ngramrl_jax.host.kernel import alive, borrowed, kernel
from ngramrl_jax.host.log import GRAMS, Log, bucket_of
from ngramrl_jax.types import Int32Array


@kernel
def _unchain(text_S, chain_GS, bucket_GH, position):
    """Takes the newest position out of its chains."""
    for size in range(len(GRAMS)):
        bucket = bucket_of(text_S, 0, position + 1, GRAMS[size], 0, bucket_GH.shape[1])
        bucket_GH[size, bucket] = chain_GS[size, position]


@kernel
def draft_entries(
    log: Log,
    rows: Rows,
    rule: Rule,
    first: int,
    last: int,
    flight: Flight,
    ids_BTX: Int32Array,
    chosen_BF: Int32Array,
    length_BF: Int32Array,
    last_BF: Int32Array,
    draft_BFK: Int32Array,
    drafted_BF: Int32Array,
) -> None:
    """Drafts what was chosen, see `outcomes.allocate`, of the rows from `first` to before `last`.

    The rows' own text must be chained to the end, as drafting leaves it; `rows.end_B` is changed
    meanwhile.
    """
    mine = empty_scratch(rule)
    log, rows, scratch = borrowed(log), borrowed(rows), borrowed(mine)
    budget, width = draft_BFK.shape[2], ids_BTX.shape[2]
    for row in range(first, last):
        text_S, flight_K = rows.text_BS[row], flight.draft_BK[row]
        end, noted = rows.end_B[row], rows.noted_B[row]
        for f in range(chosen_BF.shape[1]):
            if chosen_BF[row, f] < 0:
                continue
            accepted = chosen_BF[row, f] // width
            emitted = ids_BTX[row, accepted, chosen_BF[row, f] % width]
            text_S[end : end + accepted] = flight_K[:accepted]
            text_S[end + accepted] = emitted
            rows.end_B[row] = end + accepted + 1
            wanted = min(budget, flight.room_B[row] - accepted - 2)
            drafted, _ = draft_row(log, rows, rule, scratch, row, wanted, draft_BFK[row, f])
            length_BF[row, f] = rows.end_B[row]
            last_BF[row, f] = emitted
            drafted_BF[row, f] = drafted
        if rows.noted_B[row] > noted:
            text_S[end : end + flight_K.size] = flight_K
            for position in range(rows.noted_B[row] - 1, noted - 1, -1):
                _unchain(text_S, rows.chain_BGS[row], rows.bucket_BGH[row], position)
            rows.noted_B[row] = noted
        rows.end_B[row] = end
    alive(mine)
