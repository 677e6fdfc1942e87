"""Conditions that narrow a table down, each with three ways to say it in English.

A phrase follows the noun: "books" + "of the genre Fantasy". The three phrases of a filter differ
in their words, not only in their order, and stay true for singular and plural nouns.
`FAMILIES` holds the kinds of filter; each yields tables with filters in a drawn order.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from data.schemas import Category, Column, Domain, Label, Link, Measure, Row, Table


@dataclass(frozen=True)
class Filter:
    """A condition, the joins it needs (each with a leading space) and three phrases for it."""

    condition: str
    phrases: tuple[str, str, str]
    joins: str = ""


@dataclass(frozen=True)
class Source:
    """A domain, its rows and the generator that all choices about it are drawn from."""

    domain: Domain
    rows: dict[str, list[Row]]
    rng: random.Random

    def shuffled(self, items: list) -> list:
        """The items in a drawn order."""
        return self.rng.sample(items, len(items))

    def values(self, table: Table, column: Column) -> list[Any]:
        """The column's values, row by row."""
        place = 1 + table.columns.index(column)
        return [row[place] for row in self.rows[table.name]]

    def value(self, table: Table, column: Column) -> Any:
        """One of the column's values, drawn by how often it occurs."""
        return self.rng.choice(self.values(table, column))

    def columns(self, kind: type, *, named: bool = True) -> list[tuple[Table, Any]]:
        """Every table with each of its columns of that kind, in a drawn order.

        Args:
            kind: `Category`, `Measure` or `Link`.
            named: Only tables whose rows have a name.
        """
        pairs = [(t, c) for t in self.domain.tables for c in t.columns if isinstance(c, kind)]
        return self.shuffled([(t, c) for t, c in pairs if t.label or not named])


Family = Iterator[tuple[Table, Filter]]


def article(noun: str) -> str:
    """The noun with "a" or "an"."""
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def threshold(source: Source, table: Table, measure: Measure) -> int:
    """A round number that splits the table's rows somewhere between 25 and 75 percent."""
    values = sorted(source.values(table, measure))
    value = values[round(source.rng.uniform(0.25, 0.75) * (len(values) - 1))]
    wide = (measure.high - measure.low) // measure.step >= 20
    grain = measure.step * (5 if wide else 1)
    return max(measure.low + measure.step, round(value / grain) * grain)


def equal(column: Category, value: str, prefix: str = "") -> Filter:
    """The column has the value."""
    phrases = (
        column.of.format(v=value),
        f"whose {column.name} is {value}",
        f"with {value} as {column.name}",
    )
    return Filter(f"{prefix}{column.name} = '{value}'", phrases)


def compare(measure: Measure, above: bool, number: int, prefix: str = "") -> Filter:
    """The measure is strictly greater, or less, than the number."""
    more, over = ("later than", "after") if measure.year else ("greater than", "above")
    less, under = ("earlier than", "before") if measure.year else ("less than", "below")
    phrases = (
        (measure.above if above else measure.below).format(n=number),
        f"whose {measure.phrase} is {more if above else less} {number}",
        f"with {article(measure.phrase)} {over if above else under} {number}",
    )
    return Filter(f"{prefix}{measure.name} {'>' if above else '<'} {number}", phrases)


def both(first: Filter, second: Filter) -> Filter:
    """Both conditions hold."""
    one, two, three = (f"{a} and {b}" for a, b in zip(first.phrases, second.phrases, strict=True))
    return Filter(
        f"{first.condition} AND {second.condition}", (one, two, three), first.joins + second.joins
    )


def between(measure: Measure, low: int, high: int) -> Filter:
    """The measure lies in a closed interval."""
    phrases = (
        f"whose {measure.phrase} is between {low} and {high}",
        f"with {article(measure.phrase)} from {low} to {high}",
        f"having {article(measure.phrase)} of at least {low} and at most {high}",
    )
    return Filter(f"{measure.name} BETWEEN {low} AND {high}", phrases)


def join(child: str, link: Link) -> str:
    """The join from a child to its parent."""
    return f" JOIN {link.parent} ON {child}.{link.name} = {link.parent}.id"


def linked(source: Source, child: Table, link: Link) -> Iterator[Filter]:
    """The child's parent meets a filter of its own."""
    parent = source.domain.table(link.parent)
    for of in simple(source, parent, prefix=f"{parent.name}."):
        phrases = (
            f"{link.by} {parent.many} {of.phrases[0]}",
            f"{link.by} {article(parent.name)} {of.phrases[1]}",
            f"that {parent.many} {of.phrases[2]} {link.verb}",
        )
        yield Filter(of.condition, phrases, join(child.name, link))


def linked_named(child: Table, link: Link, label: Label, value: str) -> Filter:
    """The child's parent is the one of that name."""
    phrases = (
        f"{link.by} {value}",
        f"whose {link.parent} is {value}",
        f"that {value} {link.verb}",
    )
    return Filter(f"{link.parent}.{label.name} = '{value}'", phrases, join(child.name, link))


def simple(source: Source, table: Table, prefix: str = "") -> Iterator[Filter]:
    """Filters on one column of the table, in a drawn order."""
    for column in source.shuffled([*table.categories, *table.measures]):
        if isinstance(column, Category):
            yield equal(column, source.value(table, column), prefix)
        else:
            number = threshold(source, table, column)
            yield compare(column, source.rng.random() < 0.5, number, prefix)


def _category(source: Source) -> Family:
    for table, column in source.columns(Category):
        yield table, equal(column, source.value(table, column))


def _measure(source: Source) -> Family:
    for table, column in source.columns(Measure, named=False):
        yield table, compare(column, True, threshold(source, table, column))
        yield table, compare(column, False, threshold(source, table, column))


def _category_and_measure(source: Source) -> Family:
    for table, column in source.columns(Category):
        for measure in source.shuffled(table.measures):
            first = equal(column, source.value(table, column))
            number = threshold(source, table, measure)
            yield table, both(first, compare(measure, source.rng.random() < 0.5, number))


def _either(source: Source) -> Family:
    for table, column in source.columns(Category):
        one, two = source.rng.sample(sorted(set(source.values(table, column))), 2)
        phrases = equal(column, f"{one} or {two}").phrases
        yield table, Filter(f"{column.name} IN ('{one}', '{two}')", phrases)


def _not_equal(source: Source) -> Family:
    for table, column in source.columns(Category):
        value = source.value(table, column)
        phrases = (
            f"whose {column.name} is not {value}",
            f"with a {column.name} other than {value}",
            f"of any {column.name} except {value}",
        )
        yield table, Filter(f"{column.name} != '{value}'", phrases)


def _between(source: Source) -> Family:
    for table, measure in source.columns(Measure):
        low, high = sorted(threshold(source, table, measure) for _ in range(2))
        if low < high:
            yield table, between(measure, low, high)


def _initial(source: Source) -> Family:
    for table, label in source.columns(Label):
        letter = source.value(table, label)[0]
        phrases = (
            f"whose {label.name} starts with {letter}",
            f"with a {label.name} beginning with the letter {letter}",
            f"having {letter} as the first letter of the {label.name}",
        )
        yield table, Filter(f"{label.name} LIKE '{letter}%'", phrases)


def _versus_average(source: Source) -> Family:
    for table, measure in source.columns(Measure):
        if measure.year:
            continue
        above = source.rng.random() < 0.6
        more, over = ("greater than", "above") if above else ("less than", "below")
        phrases = (
            f"with {'an above' if above else 'a below'}-average {measure.phrase}",
            f"whose {measure.phrase} is {more} the average of all {table.many}",
            f"with {article(measure.phrase)} {over} the mean",
        )
        average = f"(SELECT AVG({measure.name}) FROM {table.name})"
        yield table, Filter(f"{measure.name} {'>' if above else '<'} {average}", phrases)


def _versus_named(source: Source) -> Family:
    for table, measure in source.columns(Measure):
        if measure.year or table.label is None:
            continue
        value = source.value(table, table.label)
        phrases = (
            f"whose {measure.phrase} is greater than that of {value}",
            f"with {article(measure.phrase)} above the one of {value}",
            f"that exceed {value} in {measure.phrase}",
        )
        of = f"(SELECT {measure.name} FROM {table.name} WHERE {table.label.name} = '{value}')"
        yield table, Filter(f"{measure.name} > {of}", phrases)


def _parent_named(source: Source) -> Family:
    for table, link in source.columns(Link, named=False):
        parent = source.domain.table(link.parent)
        assert parent.label is not None
        used = source.value(table, link)
        name = source.values(parent, parent.label)[used - 1]
        yield table, linked_named(table, link, parent.label, name)


def _parent_where(source: Source) -> Family:
    for table, link in source.columns(Link, named=False):
        for of in linked(source, table, link):
            yield table, of


def _both_parents(source: Source) -> Family:
    for table in source.domain.tables:
        if len(table.links) == 2:
            first, second = source.shuffled(table.links)
            for one, two in zip(
                linked(source, table, first), linked(source, table, second), strict=False
            ):
                yield table, both(one, two)


def _across_bridge(source: Source) -> Family:
    """Rows on one side of a bridge that belong to a named row of the other side."""
    bridge = source.domain.bridge
    if bridge is None:
        return
    sides = [bridge.subject, bridge.object]
    for here, there in (sides, sides[::-1]) * 2:
        table, other = source.domain.table(here), source.domain.table(there)
        assert other.label is not None
        value = source.value(other, other.label)
        if here == bridge.subject:
            said = f"{table.who} {bridge.verb}"
            phrases = (f"{said} {value}", f"{bridge.via} {value}", f"{said} the {there} {value}")
        else:
            phrases = (
                f"{bridge.passive} {value}",
                f"that {value} {bridge.verb}",
                f"{bridge.passive} the {there} {value}",
            )
        middle = source.domain.table(bridge.table)
        link = next(c for c in middle.links if c.parent == there)
        joins = f" JOIN {middle.name} ON {middle.name}.{here}_id = {here}.id"
        condition = f"{there}.{other.label.name} = '{value}'"
        yield table, Filter(condition, phrases, joins + join(middle.name, link))


def _has_child(source: Source) -> Family:
    for child, link in source.columns(Link, named=False):
        parent = source.domain.table(link.parent)
        for of in simple(source, child):
            phrases = (
                f"{parent.who} {link.verb} {article(child.name)} {of.phrases[0]}",
                f"having at least one {child.name} {of.phrases[1]}",
                f"for which there is {article(child.name)} {of.phrases[2]}",
            )
            inner = f"SELECT {link.name} FROM {child.name} WHERE {of.condition}"
            yield parent, Filter(f"id IN ({inner})", phrases)


def _no_child(source: Source) -> Family:
    for child, link in source.columns(Link, named=False):
        parent = source.domain.table(link.parent)
        phrases = (
            f"{parent.who} {link.verb} no {child.name}",
            f"without any {child.name}",
            f"for which there is no {child.name}",
        )
        yield parent, Filter(f"id NOT IN (SELECT {link.name} FROM {child.name})", phrases)


def _parent_of(source: Source) -> Family:
    """The one parent of a named child."""
    for child, link in source.columns(Link):
        assert child.label is not None
        parent, value = source.domain.table(link.parent), source.value(child, child.label)
        phrases = (
            f"{parent.who} {link.verb} {value}",
            f"that the {child.name} {value} belongs to",
            f"of the {child.name} {value}",
        )
        joins = f" JOIN {child.name} ON {child.name}.{link.name} = {parent.name}.id"
        yield parent, Filter(f"{child.name}.{child.label.name} = '{value}'", phrases, joins)


FAMILIES: dict[str, Callable[[Source], Family]] = {
    "category": _category,
    "measure": _measure,
    "category_and_measure": _category_and_measure,
    "either": _either,
    "not_equal": _not_equal,
    "between": _between,
    "initial": _initial,
    "versus_average": _versus_average,
    "versus_named": _versus_named,
    "parent_named": _parent_named,
    "parent_where": _parent_where,
    "both_parents": _both_parents,
    "across_bridge": _across_bridge,
    "has_child": _has_child,
    "no_child": _no_child,
    "parent_of": _parent_of,
}
