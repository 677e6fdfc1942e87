"""Pools of values and columns that several domains share. Names and titles are invented."""

from itertools import product

from data.schemas import Category, Label, Measure


def words(text: str) -> tuple[str, ...]:
    """The words of a text, as values."""
    return tuple(text.split())


FIRST = words(
    "Anna Ben Clara David Elena Felix Grace Hugo Ines Jonas Karin Leo Maria Nils Olga Paul "
    "Rosa Simon Tara Victor"
)
LAST = words(
    "Adler Berg Costa Dahl Evans Fischer Garcia Holm Ito Jensen Keller Lopez Moreau Novak "
    "Olsen Patel Quinn Rossi Silva Weber"
)
PEOPLE = tuple(f"{first} {last}" for first, last in product(FIRST, LAST))

_ADJECTIVES = words(
    "Silent Golden Broken Hidden Northern Distant Burning Frozen Gentle Crimson Empty Wild"
)
_NOUNS = words("River Garden Mirror Harbour Winter Tower Road Island Forest Letter Storm Song")
TITLES = tuple(f"{adjective} {noun}" for adjective, noun in product(_ADJECTIVES, _NOUNS))

COUNTRIES = words("France Spain Italy Japan Brazil Kenya Canada Norway")
CITIES = words("Paris Madrid Rome Oslo Vienna Lisbon Dublin Prague")


def people() -> Label:
    """The name of a person."""
    return Label("name", PEOPLE)


def titles() -> Label:
    """The title of a work."""
    return Label("title", TITLES)


def country() -> Category:
    """Where someone or something comes from."""
    return Category("country", "countries", "from {v}", COUNTRIES)


def lives_in() -> Category:
    """Where someone lives."""
    return Category("city", "cities", "living in {v}", CITIES)


def located_in() -> Category:
    """Where something stands."""
    return Category("city", "cities", "in {v}", CITIES)


def age(low: int, high: int) -> Measure:
    """Years of life."""
    return Measure(
        "age", "age", low, high, 1, "older than {n}", "younger than {n}", "oldest", "youngest"
    )


def born(low: int, high: int) -> Measure:
    """Year of birth."""
    return Measure(
        *("born", "birth year", low, high, 1),
        *("born after {n}", "born before {n}", "youngest", "oldest"),
        year=True,
    )


def salary(low: int, high: int) -> Measure:
    """Monthly pay."""
    return Measure(
        *("salary", "salary", low, high, 100),
        *("earning more than {n}", "earning less than {n}", "best paid", "worst paid"),
        total=True,
    )


def price(low: int, high: int, step: int = 1) -> Measure:
    """What one of it costs."""
    return Measure(
        *("price", "price", low, high, step),
        *("costing more than {n}", "costing less than {n}", "most expensive", "cheapest"),
    )


def year(low: int, high: int, verb: str) -> Measure:
    """The year in which something was made; `verb` says how: "published"."""
    return Measure(
        *("year", "year", low, high, 1),
        *(f"{verb} after {{n}}", f"{verb} before {{n}}", "newest", "oldest"),
        year=True,
    )


def counted(
    name: str, low: int, high: int, step: int, most: str, least: str, *, total: bool = True
) -> Measure:
    """A number of things, called by the column's name: "pages"."""
    return Measure(
        *(name, f"number of {name}", low, high, step),
        *(f"with more than {{n}} {name}", f"with fewer than {{n}} {name}", most, least),
        total=total,
    )
