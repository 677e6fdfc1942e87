"""The arena that holds the automata of all prompts in use, and its one rule of growth.

Legend: N response tokens of one rollout.
"""

from collections.abc import Callable, Iterable

from ngramrl_jax.host import automaton
from ngramrl_jax.host.arena import NONE, TOKEN_BYTES, allocate
from ngramrl_jax.types import Int32Array

_SLACK = 4
BYTES_PER_TOKEN = _SLACK * TOKEN_BYTES  # no living token ever costs more

Weighted = tuple[Int32Array, int, int]
"""One rollout: `tokens_N`, its weight, its serial."""


class SuffixIndex:
    """Suffix automata over the rollouts of the prompts in use.

    Texts are only ever added to the arrays. When one does not fit, or when too little of what
    they hold is alive, the arrays are made anew from the living rollouts, with room for twice as
    much: growth and clearing away are the same step, and its cost is a constant per inserted
    token. Nothing that can be asked of the index depends on when that happens.

    Attributes:
        arena: The arrays, for the kernels to read; other ones after a rebuild.
        generation: Changes whenever a prompt's root may have moved.
    """

    def __init__(self, living: Callable[[int], Iterable[Weighted]]) -> None:
        """`living(prompt_id)` lists the rollouts of a prompt in use, oldest first."""
        self.generation = 0
        self._living = living
        self._roots: dict[int, int] = {}
        self._living_tokens = 0
        self._allocate(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, filled or not."""
        states, edges, buckets, _ = self.arena
        return states.nbytes + edges.nbytes + buckets.nbytes

    def root(self, prompt_id: int) -> int:
        """Root of the prompt's automaton; `arena.NONE` where it has none."""
        return self._roots.get(prompt_id, NONE)

    def open(self, prompt_id: int) -> None:
        """Takes a prompt into use."""
        self._roots[prompt_id] = NONE
        tokens = self._count(prompt_id)
        self._living_tokens += tokens
        if not self._make_room(tokens):
            for text in self._living(prompt_id):
                self._insert(prompt_id, text)

    def close(self, prompt_id: int) -> None:
        """Takes a prompt out of use."""
        del self._roots[prompt_id]
        self._living_tokens -= self._count(prompt_id)
        self._make_room(0)

    def add(self, prompt_id: int, text: Weighted) -> None:
        """A rollout that `living` already lists joins the automaton of a prompt in use."""
        self._living_tokens += text[0].size + 1
        if not self._make_room(text[0].size + 1):
            self._insert(prompt_id, text)

    def remove(self, prompt_id: int, text: Weighted) -> None:
        """A rollout that `living` no longer lists loses all its weight."""
        self._living_tokens -= text[0].size + 1
        self.change_weight(prompt_id, text[0], -text[1], text[2])
        self._make_room(0)

    def change_weight(self, prompt_id: int, tokens_N: Int32Array, change: int, serial: int) -> None:
        """Adds `change` to the weight of one rollout."""
        root = self._roots[prompt_id]
        automaton.weigh(self.arena, root, tokens_N, change, serial)

    def rebuild(self) -> None:
        """Makes the arrays anew from the living rollouts."""
        self._allocate(2 * self._living_tokens)
        for prompt_id in self._roots:
            self._roots[prompt_id] = NONE
            for text in self._living(prompt_id):
                self._insert(prompt_id, text)
        self.generation += 1

    def _count(self, prompt_id: int) -> int:
        return sum(tokens_N.size + 1 for tokens_N, _, _ in self._living(prompt_id))

    def _make_room(self, tokens: int) -> bool:
        """Whether room for `tokens` more, and for not too many, took a rebuild."""
        fits = self._used_tokens + tokens <= self._capacity
        if fits and self._capacity <= _SLACK * self._living_tokens:
            return False
        self.rebuild()
        return True

    def _allocate(self, capacity: int) -> None:
        self._capacity = capacity
        self._used_tokens = 0
        self.arena = allocate(capacity)

    def _insert(self, prompt_id: int, text: Weighted) -> None:
        tokens_N, weight, serial = text
        root = automaton.insert(self.arena, self._roots[prompt_id], tokens_N)
        self._used_tokens += tokens_N.size + 1
        if self._roots[prompt_id] != root:
            self._roots[prompt_id] = root
            self.generation += 1
        self.change_weight(prompt_id, tokens_N, weight, serial)
