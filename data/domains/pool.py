"""Further databases, put together from shared pools of tables and columns.

Only supervised training reads them. With ten databases a small model learns their names by heart;
here the same names recur in other company, so that what a query may say has to be read from the
schema. No pool database has more than one table in common with a held-out one.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product

from data.domains.common import (
    age,
    born,
    counted,
    country,
    lives_in,
    located_in,
    people,
    price,
    salary,
    titles,
    words,
    year,
)
from data.domains.heldout import GYM, MUSEUM
from data.schemas import SEED, Bridge, Category, Column, Domain, Label, Link, Measure, Table

ROWS = 30
EVENT_ROWS = 60

PERSONS = words(
    "actor artist author client cook customer director doctor driver farmer guest keeper member "
    "nurse patient pilot player sailor singer student teacher trainer visitor worker"
)
WORKS = words("album book course dance film game lesson painting photo play poem song story")
PLACES = words("bakery band club field garden hotel maker museum park school sponsor venue zone")
GOODS = words("animal boat drug lamp machine phone product ring tool toy train truck")
EVENTS = words(
    "booking concert contract deal exam feeding lease loan payment purchase rating rental role "
    "ticket trip visit"
)
PLURALS = {"bakery": "bakeries", "story": "stories"}

_FIRST_WORDS = words(
    "Alpha Atlas Bamboo Basic Blue City Classic Electric Evening Family Gentle Golden Grand Iron "
    "Lost Maple Midnight Modern Morning National Nova Old Park Power Red River Royal Silver Smart "
    "Star Team Upper Velvet White"
)
_LAST_WORDS = words(
    "Acre Arena Balance Chair Circuit Clock Collection Dance Eagles Energy Flow Foxes Gallery "
    "Grove Hall House Kings Lake Lamp Lift Lions Meadow Museum Palace Pilots Radio Sprint Stage "
    "Stretch Theatre Watch Wolves"
)


def _category(name: str, of: str, values: str, plural: str | None = None) -> Category:
    return Category(name, plural or f"{name}s", of, words(values))


def _sized(name: str, low: int, high: int, step: int, unit: str) -> Measure:
    return Measure(
        *(name, name, low, high, step),
        *(f"larger than {{n}} {unit}", f"smaller than {{n}} {unit}", "largest", "smallest"),
        total=True,
    )


def _paid(name: str, low: int, high: int, step: int) -> Measure:
    return Measure(
        *(name, name, low, high, step),
        *(f"with a {name} of more than {{n}}", f"with a {name} of less than {{n}}"),
        *("most expensive", "cheapest"),
        total=True,
    )


def _weight() -> Measure:
    return Measure(
        *("weight", "weight", 4, 400, 2),
        *("heavier than {n} kilos", "lighter than {n} kilos", "heaviest", "lightest"),
        total=True,
    )


def _mark() -> Measure:
    return Measure(
        *("mark", "mark", 1, 100, 1), *("marked above {n}", "marked below {n}", "best", "worst")
    )


def _founded() -> Measure:
    return Measure(
        *("founded", "founding year", 1880, 2015, 1),
        *("founded after {n}", "founded before {n}", "newest", "oldest"),
        year=True,
    )


_GENRE = _category("genre", "of the genre {v}", "Fantasy Crime Poetry Comedy Drama Horror")
_STYLE = _category("style", "of the style {v}", "Modern Classic Gothic Baroque")
_LEVEL = _category("level", "at the level {v}", "Beginner Middle Advanced Expert")
_SPORT = _category("sport", "specialised in {v}", "Boxing Yoga Rowing Climbing")
_SPECIALTY = _category(
    *("specialty", "working in {v}", "Surgery Cardiology Neurology Dentistry", "specialties")
)
_VILLAGE = _category("village", "living in {v}", "Ashford Brookfield Millbury Oakham Stonewell")
_POSITION = _category("position", "in the position {v}", "Goalkeeper Defender Forward")
_COLOUR = _category("colour", "in {v}", "Red Blue Green Black White")
_KIND = _category("kind", "of the kind {v}", "Basic Sport Travel Garden Deluxe")
_FORM = _category("form", "in the form {v}", "Tablet Syrup Cream Spray")
_SPECIES = _category("species", "of the species {v}", "Lion Zebra Penguin Monkey", "species")
_CLIMATE = _category("climate", "with the climate {v}", "Tropical Desert Polar Temperate")
_SECTOR = _category("sector", "of the sector {v}", "Finance Travel Food Energy")
_ROOM = _category("room", "held in {v}", "Lab Hall Studio Annex Library")

# What a table of each group may have, categories and measures.
_PERSON_COLUMNS = (
    [country(), lives_in(), _SPORT, _LEVEL, _SPECIALTY, _VILLAGE, _POSITION],
    [
        age(16, 85),
        born(1850, 2000),
        salary(1800, 9000),
        _weight(),
        counted("goals", 0, 140, 1, "most successful", "least successful"),
    ],
)
_WORK_COLUMNS = (
    [_GENRE, _STYLE, _LEVEL, _COLOUR, _ROOM],
    [
        counted("pages", 80, 900, 10, "longest", "shortest"),
        counted("minutes", 20, 200, 1, "longest", "shortest"),
        counted("hours", 10, 120, 2, "longest", "shortest"),
        counted("sales", 1000, 90000, 500, "best selling", "worst selling"),
        price(5, 300),
        year(1950, 2023, "released"),
    ],
)
_PLACE_COLUMNS = (
    [country(), located_in(), _CLIMATE, _SECTOR, _KIND],
    [
        counted("halls", 3, 60, 1, "largest", "smallest"),
        counted("rooms", 10, 400, 2, "largest", "smallest"),
        counted("workers", 10, 900, 10, "largest", "smallest"),
        counted("stars", 1, 5, 1, "best", "worst", total=False),
        _sized("area", 100, 3000, 20, "metres"),
        _sized("capacity", 300, 20000, 100, "seats"),
        _founded(),
    ],
)
_GOOD_COLUMNS = (
    [_COLOUR, _KIND, _FORM, _SPECIES, country(), _STYLE],
    [
        price(100, 9000, 50),
        _weight(),
        year(1950, 2023, "built"),
        _sized("power", 30, 400, 5, "units"),
        _sized("dose", 10, 500, 10, "units"),
    ],
)
_EVENT_MEASURES = [
    _paid("fee", 5, 80, 1),
    _paid("cost", 20, 600, 5),
    _paid("amount", 5000, 90000, 500),
    price(15, 120),
    _mark(),
    counted("days", 1, 40, 1, "longest", "shortest"),
    counted("nights", 1, 21, 1, "longest", "shortest"),
    counted("minutes", 5, 90, 1, "longest", "shortest"),
    counted("pieces", 1, 12, 1, "largest", "smallest"),
]

# What stands between child and parent, and what the parent did.
_WORK_OF_PERSON = (
    *(("by", "made"), ("by", "painted"), ("by", "wrote"), ("by", "released")),
    *(("led by", "led"), ("taught by", "taught")),
)
_GOOD_OF_PERSON = (("by", "made"), ("of", "owned"), ("used by", "used"), ("from", "produced"))
_AT_PLACE = (
    *(("shown in", "displayed"), ("kept in", "housed"), ("at", "hosted"), ("from", "produced")),
    *(("under contract with", "hired"), ("in", "had")),
)
_BY_PERSON = (("by", "made"), ("of", "bought"), ("taken by", "took"), ("by", "did"), ("of", "had"))
_OF_OBJECT = (("of", "had"), ("for", "had"), ("in", "had"), ("at", "received"), ("with", "closed"))
_ACTS = (
    *(("borrowed", "borrowed by"), ("joined", "joined by"), ("visited", "visited by")),
    *(("bought", "bought by"), ("booked", "booked by"), ("took", "taken by"), ("fed", "fed by")),
)


class _Draw:
    """One database in the making: names that are taken, and the generator of all choices."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self._taken: set[str] = set()

    def person(self, *links: Link) -> Table:
        return self._table(PERSONS, people(), _PERSON_COLUMNS, links, who="who")

    def work(self, *links: Link) -> Table:
        return self._table(WORKS, self._label(0.2), _WORK_COLUMNS, links)

    def place(self, *links: Link) -> Table:
        return self._table(PLACES, self._label(0.9), _PLACE_COLUMNS, links)

    def good(self, *links: Link) -> Table:
        return self._table(GOODS, self._label(0.8), _GOOD_COLUMNS, links)

    def thing(self, person: Table | None = None, place: Table | None = None) -> Table:
        """A work or a good of a person, at a place."""
        work = self.rng.random() < 0.5
        said = _WORK_OF_PERSON if work else _GOOD_OF_PERSON
        links = [self.link(person, said)] if person else []
        links += [self.link(place, _AT_PLACE)] if place else []
        return self.work(*links) if work else self.good(*links)

    def link(self, parent: Table, said: tuple[tuple[str, str], ...]) -> Link:
        return Link(parent.name, *self.rng.choice(said))

    def event(self, subject: Table, object_: Table) -> tuple[Table, Bridge]:
        """A table that joins two others, and how it is spoken of."""
        name = self._name(EVENTS)
        to = self.link(object_, _OF_OBJECT)
        measures = self.rng.sample(_EVENT_MEASURES, self.rng.choice([1, 1, 2]))
        links = self.rng.sample([self.link(subject, _BY_PERSON), to], 2)
        bridge = Bridge(
            *(name, subject.name, object_.name),
            *self.rng.choice(_ACTS),
            f"with {'an' if name[0] in 'aeiou' else 'a'} {name} {to.by}",
        )
        return Table(name, f"{name}s", EVENT_ROWS, (*links, *measures)), bridge

    def _name(self, pool: tuple[str, ...]) -> str:
        name = self.rng.choice([name for name in pool if name not in self._taken])
        self._taken.add(name)
        return name

    def _label(self, named: float) -> Label:
        if self.rng.random() > named:
            return titles()
        parts = self.rng.sample(_FIRST_WORDS, 8), self.rng.sample(_LAST_WORDS, 8)
        return Label("name", tuple(f"{first} {last}" for first, last in product(*parts)))

    def _table(
        self,
        pool: tuple[str, ...],
        label: Label,
        columns: tuple[list[Category], list[Measure]],
        links: tuple[Link, ...],
        who: str = "that",
    ) -> Table:
        name = self._name(pool)
        categories, measures = columns
        few, some = self.rng.choice([(1, 1), (1, 1), (1, 2), (1, 2), (2, 1)])
        drawn: list[Column] = [
            *self.rng.sample(categories, few),
            *self.rng.sample(measures, some),
        ]
        rest = self.rng.sample([*links, *drawn], len(links) + len(drawn))
        return Table(name, PLURALS.get(name, f"{name}s"), ROWS, (label, *rest), who)


_Shape = Callable[[_Draw], tuple[list[Table], Bridge | None]]


def _lending(draw: _Draw) -> tuple[list[Table], Bridge | None]:
    maker, user = draw.person(), draw.person()
    thing = draw.thing(maker)
    event, bridge = draw.event(user, thing)
    return [maker, thing, user, event], bridge


def _showing(draw: _Draw) -> tuple[list[Table], Bridge | None]:
    maker, place = draw.person(), draw.place()
    thing = draw.thing(maker, place)
    return [maker, place, thing], None


def _staying(draw: _Draw) -> tuple[list[Table], Bridge | None]:
    guest, place = draw.person(), draw.place()
    event, bridge = draw.event(guest, place)
    return [place, guest, event], bridge


def _owning(draw: _Draw) -> tuple[list[Table], Bridge | None]:
    owner = draw.person()
    return [owner, draw.thing(owner), draw.thing(owner)], None


def _housing(draw: _Draw) -> tuple[list[Table], Bridge | None]:
    place, user = draw.place(), draw.person()
    thing = draw.thing(place=place)
    event, bridge = draw.event(user, thing)
    return [place, thing, user, event], bridge


_SHAPES: tuple[_Shape, ...] = (_lending, _lending, _showing, _staying, _owning, _housing)


def pool_domains() -> Iterator[Domain]:
    """Databases without end, the same ones every time."""
    held_out = [{table.name for table in domain.tables} for domain in (MUSEUM, GYM)]
    rng = random.Random(f"{SEED}/pool")
    number = 0
    while True:
        tables, bridge = rng.choice(_SHAPES)(_Draw(rng))
        names = {table.name for table in tables}
        if all(len(names & other) <= 1 for other in held_out):
            yield Domain(f"pool{number}", tuple(rng.sample(tables, len(tables))), bridge)
            number += 1
