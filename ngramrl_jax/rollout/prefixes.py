"""Which prompts have a prefix cache on the device; the least recently used makes room."""

from collections import OrderedDict


class PrefixIndex:
    """Maps prompt ids to rows of the device's prefix cache.

    An entry may be overwritten as soon as its copies into slots are dispatched: the device runs
    dispatches in order, so nothing needs pinning. Entries belong to one set of parameters;
    `clear` before new ones are used (CASES B37: stale prefix after an update).
    """

    def __init__(self, entries: int) -> None:
        """An empty index over `entries` rows, at least 1."""
        self._free = list(range(entries))[::-1]
        self._entry_of: OrderedDict[int, int] = OrderedDict()

    def clear(self) -> None:
        """Forgets every entry."""
        self._free.extend(self._entry_of.values())
        self._entry_of.clear()

    def find(self, prompt_id: int) -> int | None:
        """The prompt's entry, now the most recently used one, or None."""
        if prompt_id not in self._entry_of:
            return None
        self._entry_of.move_to_end(prompt_id)
        return self._entry_of[prompt_id]

    def add(self, prompt_id: int) -> int:
        """An entry for a new prompt: a free one, else the least recently used one."""
        entry = self._free.pop() if self._free else self._entry_of.popitem(last=False)[1]
        self._entry_of[prompt_id] = entry
        return entry
