"""Candidate questions: each kind of query over everything a domain holds, in a drawn order.

A candidate becomes an intent (see `data.questions`) only if its query proves itself on the rows:
a result, not an empty count, a filter that filters, an order without ties.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from data.filters import FAMILIES, Filter, Source, article, compare, equal, simple, threshold
from data.schemas import Category, Link, Measure, Table
from data.wordings import WORDINGS


@dataclass(frozen=True)
class Candidate:
    """A query that may become an intent.

    Args:
        wording: Key of `WORDINGS`.
        query: The gold query.
        slots: What the wordings' slots say.
        whole: A query whose result must differ, so that the filter is seen to filter.
        keys: A query for the values that decide an order; they must all differ.
    """

    wording: str
    query: str
    slots: dict[str, object]
    whole: str | None = None
    keys: str | None = None

    def proves_itself(self, connection: sqlite3.Connection) -> bool:
        """Whether the query's result on the rows makes it a fair question."""
        rows = connection.execute(self.query).fetchall()
        if not rows or rows == [(0,)] or any(None in row for row in rows):
            return False
        if self.whole and rows == connection.execute(self.whole).fetchall():
            return False
        keys = connection.execute(self.keys).fetchall() if self.keys else []
        return len(set(keys)) == len(keys)

    def questions(self) -> tuple[str, ...]:
        """All wordings, filled in."""
        filled = (wording.format(**self.slots) for wording in WORDINGS[self.wording])
        return tuple(text[0].upper() + text[1:] for text in filled)


Kind = Callable[[Source], Iterator[Candidate]]


def _nouns(table: Table, letter: str = "f", of: Filter | None = None) -> dict[str, object]:
    slots: dict[str, object] = {
        "one": table.name,
        "a_one": article(table.name),
        "many": table.many,
        "label": table.label.name if table.label else "",
    }
    phrases = of.phrases if of else ()
    return slots | {f"{letter}{i}": phrase for i, phrase in enumerate(phrases)}


def _extremes(measure: Measure) -> dict[str, object]:
    highest, lowest = ("latest", "earliest") if measure.year else ("highest", "lowest")
    return {"x": measure.phrase, "highest": highest, "lowest": lowest}


def _select(what: str, table: Table, of: Filter) -> str:
    """Columns in `what` are qualified where the filter joins."""
    if of.joins and what != "COUNT(*)":
        head, _, column = what.rpartition("(")
        what = f"{head}{'(' if head else ''}{table.name}.{column}"
    return f"SELECT {what} FROM {table.name}{of.joins} WHERE {of.condition}"


def count_where(family: str) -> Kind:
    """How many rows meet a filter of the family."""

    def kind(source: Source) -> Iterator[Candidate]:
        for table, of in FAMILIES[family](source):
            whole = f"SELECT COUNT(*) FROM {table.name}"
            yield Candidate("count", _select("COUNT(*)", table, of), _nouns(table, of=of), whole)

    return kind


def list_where(family: str, wording: str = "list") -> Kind:
    """The names of the rows that meet a filter of the family."""

    def kind(source: Source) -> Iterator[Candidate]:
        for table, of in FAMILIES[family](source):
            if table.label:
                label = table.label.name
                whole = f"SELECT {label} FROM {table.name}"
                yield Candidate(wording, _select(label, table, of), _nouns(table, of=of), whole)

    return kind


def list_two(source: Source) -> Iterator[Candidate]:
    """Name and one more column of the rows that meet a filter."""
    for family in source.shuffled(["category", "measure", "has_child"]):
        for table, of in FAMILIES[family](source):
            for column in source.shuffled([*table.categories, *table.measures]):
                if table.label and column.name not in of.condition:
                    what = f"{table.label.name}, {column.name}"
                    slots = _nouns(table, of=of) | {"x": _phrase(column)}
                    query = _select(what, table, of)
                    yield Candidate("list_two", query, slots, f"SELECT {what} FROM {table.name}")
                    break


def _phrase(column: Category | Measure) -> str:
    return column.phrase if isinstance(column, Measure) else column.name


def count_all(source: Source) -> Iterator[Candidate]:
    """How many rows a table has."""
    for table in source.shuffled(list(source.domain.tables)):
        yield Candidate("count_all", f"SELECT COUNT(*) FROM {table.name}", _nouns(table))


def project(source: Source) -> Iterator[Candidate]:
    """Name and one more column of every row."""
    for table, column in source.shuffled(source.columns(Category) + source.columns(Measure)):
        assert table.label is not None
        query = f"SELECT {table.label.name}, {column.name} FROM {table.name}"
        yield Candidate("project", query, _nouns(table) | {"x": _phrase(column)})


def lookup(source: Source) -> Iterator[Candidate]:
    """One column of a named row."""
    for table, column in source.shuffled(source.columns(Category) + source.columns(Measure)):
        assert table.label is not None
        value = source.value(table, table.label)
        query = f"SELECT {column.name} FROM {table.name} WHERE {table.label.name} = '{value}'"
        yield Candidate("lookup", query, _nouns(table) | {"x": _phrase(column), "value": value})


def per_category(wording: str, query: str) -> Kind:
    """A query in `{c}`, a category, and `{t}`, its table."""

    def kind(source: Source) -> Iterator[Candidate]:
        for table, column in source.columns(Category):
            keys = None
            if wording.endswith("_common"):
                keys = (
                    f"SELECT COUNT(*) FROM {table.name} GROUP BY {column.name} ORDER BY COUNT(*) "
                    f"{'DESC ' if wording == 'most_common' else ''}LIMIT 2"
                )
            slots = _nouns(table) | {"x": column.name, "xs": column.plural}
            text = query.format(c=column.name, t=table.name)
            yield Candidate(wording, text, slots, keys=keys)

    return kind


def order_by(source: Source) -> Iterator[Candidate]:
    """All names, ordered by a measure."""
    for table, column in source.columns(Measure):
        assert table.label is not None
        wording, way = source.rng.choice([("order_down", " DESC"), ("order_up", "")])
        query = f"SELECT {table.label.name} FROM {table.name} ORDER BY {column.name}{way}"
        keys = f"SELECT {column.name} FROM {table.name}"
        yield Candidate(wording, query, _nouns(table) | _extremes(column), keys=keys)


def order_label(source: Source) -> Iterator[Candidate]:
    """All names in alphabetical order."""
    for table in source.shuffled([t for t in source.domain.tables if t.label]):
        label = table.label.name
        query = f"SELECT {label} FROM {table.name} ORDER BY {label}"
        yield Candidate("order_label", query, _nouns(table))


def top(limit: int) -> Kind:
    """The first rows by a measure."""

    def kind(source: Source) -> Iterator[Candidate]:
        for table, column in source.columns(Measure):
            assert table.label is not None
            down = source.rng.random() < 0.5
            way = " DESC" if down else ""
            order = f"FROM {table.name} ORDER BY {column.name}{way} LIMIT"
            slots = _nouns(table) | _extremes(column) | {"k": limit}
            slots |= {
                "most": column.most if down else column.least,
                "highest": slots["highest" if down else "lowest"],
            }
            query = f"SELECT {table.label.name} {order} {limit}"
            keys = f"SELECT {column.name} {order} {limit + 1}"
            yield Candidate("top_down" if limit == 1 else "top_many", query, slots, keys=keys)

    return kind


def top_where(source: Source) -> Iterator[Candidate]:
    """The first row by a measure among those that meet a filter."""
    for table, column in source.columns(Measure):
        assert table.label is not None
        for category in source.shuffled(table.categories):
            of = equal(category, source.value(table, category))
            order = f"FROM {table.name} WHERE {of.condition} ORDER BY {column.name} DESC LIMIT"
            slots = _nouns(table, of=of) | _extremes(column) | {"most": column.most}
            yield Candidate(
                "top_where",
                f"SELECT {table.label.name} {order} 1",
                slots,
                whole=f"SELECT {table.label.name} FROM {table.name} WHERE {of.condition}",
                keys=f"SELECT {column.name} {order} 2",
            )


def _aggregates(source: Source, column: Measure) -> list[tuple[str, str]]:
    """SQL functions that make sense of the measure, with the word for each."""
    words = _extremes(column)
    functions = [("MAX", str(words["highest"])), ("MIN", str(words["lowest"]))]
    functions += [] if column.year else [("AVG", "average")] * 2
    functions += [("SUM", "total")] * 3 if column.total else []
    return source.shuffled(functions)


def aggregate(source: Source) -> Iterator[Candidate]:
    """Maximum, minimum, average or sum of a measure."""
    for table, column in source.columns(Measure, named=False):
        function, how = _aggregates(source, column)[0]
        query = f"SELECT {function}({column.name}) FROM {table.name}"
        yield Candidate("aggregate", query, _nouns(table) | {"x": column.phrase, "how": how})


def aggregate_where(family: str) -> Kind:
    """The same over the rows that meet a filter of the family."""

    def kind(source: Source) -> Iterator[Candidate]:
        for table, of in FAMILIES[family](source):
            for column in source.shuffled(table.measures):
                function, how = _aggregates(source, column)[0]
                what = f"{function}({column.name})"
                slots = _nouns(table, of=of) | {"x": column.phrase, "how": how}
                whole = f"SELECT {what} FROM {table.name}"
                yield Candidate("aggregate_where", _select(what, table, of), slots, whole)

    return kind


def min_max(source: Source) -> Iterator[Candidate]:
    """Both extremes of a measure."""
    for table, column in source.columns(Measure, named=False):
        query = f"SELECT MIN({column.name}), MAX({column.name}) FROM {table.name}"
        yield Candidate("min_max", query, _nouns(table) | _extremes(column))


def group_aggregate(source: Source) -> Iterator[Candidate]:
    """An aggregate of a measure for each value of a category."""
    for table, column in source.columns(Category):
        for measure in source.shuffled(table.measures):
            function, how = _aggregates(source, measure)[0]
            query = (
                f"SELECT {column.name}, {function}({measure.name}) FROM {table.name} "
                f"GROUP BY {column.name}"
            )
            slots = _nouns(table) | {"x": column.name, "y": measure.phrase, "how": how}
            yield Candidate("group_aggregate", query, slots)


def group_having(source: Source) -> Iterator[Candidate]:
    """The values of a category that many rows have."""
    for table, column in source.columns(Category):
        k = source.rng.choice(sorted(Counter(source.values(table, column)).values())[:-1])
        group = f"SELECT {column.name} FROM {table.name} GROUP BY {column.name}"
        slots = _nouns(table) | {"x": column.name, "xs": column.plural, "k": k}
        yield Candidate("group_having", f"{group} HAVING COUNT(*) > {k}", slots, group)


def _families(source: Source) -> Iterator[tuple[dict[str, object], Table, Link, str, str]]:
    """Children with their parents: slots, child, link, the parent's label and the join."""
    for child, link in source.columns(Link, named=False):
        parent = source.domain.table(link.parent)
        assert parent.label is not None
        slots = _nouns(child) | {
            "parent": parent.name,
            "parents": parent.many,
            "plabel": parent.label.name,
            "verb": link.verb,
        }
        label = f"{parent.name}.{parent.label.name}"
        join = (
            f"FROM {parent.name} JOIN {child.name} ON {child.name}.{link.name} = {parent.name}.id"
        )
        yield slots, child, link, label, join


def join_project(source: Source) -> Iterator[Candidate]:
    """Every child's name with its parent's."""
    for slots, child, link, label, _ in _families(source):
        if child.label:
            query = (
                f"SELECT {child.name}.{child.label.name}, {label} FROM {child.name} "
                f"JOIN {link.parent} ON {child.name}.{link.name} = {link.parent}.id"
            )
            yield Candidate("join_project", query, slots)


def parent_count(source: Source) -> Iterator[Candidate]:
    """How many children each parent has."""
    for slots, _, _, label, join in _families(source):
        query = f"SELECT {label}, COUNT(*) {join} GROUP BY {label}"
        yield Candidate("parent_count", query, slots)


def parent_having(source: Source) -> Iterator[Candidate]:
    """The parents that have many children."""
    for slots, child, link, label, join in _families(source):
        counts = sorted(Counter(source.values(child, link)).values())
        k = counts[round(source.rng.uniform(0.5, 0.8) * (len(counts) - 1))]
        group = f"SELECT {label} {join} GROUP BY {label}"
        query = f"{group} HAVING COUNT(*) > {k}"
        yield Candidate("parent_having", query, slots | {"k": k}, whole=group)


def parent_top(source: Source) -> Iterator[Candidate]:
    """The parent that has the most children."""
    for slots, _, _, label, join in _families(source):
        tail = f"{join} GROUP BY {label} ORDER BY COUNT(*) DESC LIMIT"
        keys = f"SELECT COUNT(*) {tail} 2"
        yield Candidate("parent_top", f"SELECT {label} {tail} 1", slots, keys=keys)


def union(source: Source) -> Iterator[Candidate]:
    """The rows that meet one filter or another."""
    for table, column in source.columns(Category):
        for measure in source.shuffled(table.measures):
            assert table.label is not None
            above = source.rng.random() < 0.5
            one = equal(column, source.value(table, column))
            two = compare(measure, above, threshold(source, table, measure))
            whole = f"SELECT {table.label.name} FROM {table.name}"
            query = f"{whole} WHERE {one.condition} UNION {whole} WHERE {two.condition}"
            slots = _nouns(table, of=one) | _nouns(table, "g", two)
            yield Candidate("union", query, slots, whole)


def intersect(source: Source) -> Iterator[Candidate]:
    """The values of a category on both sides of a gap in a measure."""
    for table, column in source.columns(Category):
        for measure in source.shuffled(table.measures):
            one = compare(measure, True, threshold(source, table, measure))
            two = compare(measure, False, threshold(source, table, measure))
            part = f"SELECT {column.name} FROM {table.name} WHERE"
            query = f"{part} {one.condition} INTERSECT {part} {two.condition}"
            slots = _nouns(table, of=one) | _nouns(table, "g", two)
            slots |= {"x": column.name, "xs": column.plural}
            yield Candidate("intersect", query, slots)


def difference(source: Source) -> Iterator[Candidate]:
    """The values of a category that no row with some property has."""
    for table, column in source.columns(Category):
        for of in simple(source, table):
            if column.name not in of.condition:
                part = f"SELECT {column.name} FROM {table.name}"
                query = f"{part} EXCEPT {part} WHERE {of.condition}"
                slots = _nouns(table, of=of) | {"x": column.name, "xs": column.plural}
                yield Candidate("except", query, slots)


def cross(operator: str) -> Kind:
    """A set operation between the same category of two tables."""

    def kind(source: Source) -> Iterator[Candidate]:
        for table, column in source.columns(Category):
            for other in source.shuffled(list(source.domain.tables)):
                if other is not table and column.name in [c.name for c in other.categories]:
                    query = f"SELECT {column.name} FROM {table.name} {operator} "
                    query += f"SELECT {column.name} FROM {other.name}"
                    slots = _nouns(table) | {"x": column.name, "xs": column.plural}
                    slots |= {"others": other.many, "other": other.name}
                    slots |= {"a_other": article(other.name)}
                    yield Candidate(f"cross_{operator.lower()}", query, slots)

    return kind
