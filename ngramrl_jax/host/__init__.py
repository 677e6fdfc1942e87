"""The host core: drafting in NumPy and Numba. Never imports jax.

A map, in the order of imports; `kernel` and `checks` are for all of them.

- What is stored: `laws` (what the policy thought at a position), `log` (all rollouts in flat
  arrays, with chains to find text in), `snapshot`, `history` (the bounded window over the log).
- What the rows say: `row_text`; `noise`, with which the target will sample.
- A draft: `search` (where has this been said before), `matches` (what is followed, and on),
  `draft` (the chain; the rule in words), `candidates` (the same walk for those who want all that
  may come next), `tree_draft` and `trees`.
- Ahead of time: `pool` (several laws made one), `common` (laws behind a few tokens),
  `calibration`, `outcome_laws` and `outcomes` (what a round in flight may bring), `fan_out`
  (drafts for that), `prefetch` (who asks for them).
- Drafters: `protocol` (the seam), `text_drafter`, `ngram`, `ngram_trees`, `no_draft`, and `peers`,
  those that others have published.
- How long to draft: `draft_length`.
"""
