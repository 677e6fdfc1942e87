"""Library, music and cinema."""

from data.domains.common import (
    age,
    born,
    counted,
    country,
    lives_in,
    located_in,
    people,
    price,
    titles,
    year,
)
from data.schemas import Bridge, Category, Domain, Label, Link, Measure, Table

LIBRARY = Domain(
    "library",
    (
        Table("author", "authors", 24, (people(), country(), born(1920, 1990)), who="who"),
        Table(
            "book",
            "books",
            60,
            (
                titles(),
                Link("author", "by", "wrote"),
                Category(
                    *("genre", "genres", "of the genre {v}"),
                    ("Fantasy", "Crime", "Poetry", "History", "Romance", "Science"),
                ),
                counted("pages", 80, 900, 10, "longest", "shortest"),
                year(1950, 2020, "published"),
            ),
        ),
        Table("member", "members", 30, (people(), lives_in(), age(12, 85)), who="who"),
        Table(
            "loan",
            "loans",
            90,
            (
                Link("book", "of", "had"),
                Link("member", "by", "made"),
                counted("days", 1, 40, 1, "longest", "shortest"),
            ),
        ),
    ),
    Bridge("loan", "member", "book", "borrowed", "borrowed by", "with a loan of"),
)

MUSIC = Domain(
    "music",
    (
        Table(
            "band",
            "bands",
            24,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in ("Blue", "Electric", "Lost", "Paper", "Midnight", "Velvet")
                        for b in ("Foxes", "Rivers", "Kings", "Machines", "Pilots", "Ghosts")
                    ),
                ),
                country(),
                Measure(
                    *("founded", "founding year", 1960, 2015, 1),
                    *("founded after {n}", "founded before {n}", "newest", "oldest"),
                    year=True,
                ),
            ),
        ),
        Table(
            "album",
            "albums",
            60,
            (
                titles(),
                Link("band", "by", "released"),
                year(1965, 2023, "released"),
                counted("sales", 1000, 90000, 500, "best selling", "worst selling"),
            ),
        ),
        Table(
            "venue",
            "venues",
            22,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in ("Star", "River", "Sun", "Royal", "Metro", "Harbour")
                        for b in ("Arena", "Hall", "Theatre", "Stage")
                    ),
                ),
                located_in(),
                Measure(
                    *("capacity", "capacity", 300, 20000, 100),
                    *("holding more than {n} people", "holding fewer than {n} people"),
                    *("largest", "smallest"),
                    total=True,
                ),
            ),
        ),
        Table(
            "concert",
            "concerts",
            90,
            (Link("band", "by", "gave"), Link("venue", "at", "hosted"), price(15, 120)),
        ),
    ),
    Bridge("concert", "band", "venue", "played at", "visited by", "with a concert at"),
)

CINEMA = Domain(
    "cinema",
    (
        Table("director", "directors", 22, (people(), country(), born(1930, 1990)), who="who"),
        Table(
            "film",
            "films",
            60,
            (
                titles(),
                Link("director", "by", "made"),
                Category(
                    *("genre", "genres", "of the genre {v}"),
                    ("Comedy", "Drama", "Horror", "Western", "Thriller", "Animation"),
                ),
                counted("minutes", 70, 200, 1, "longest", "shortest"),
                year(1970, 2023, "released"),
            ),
        ),
        Table("actor", "actors", 36, (people(), country(), age(16, 82)), who="who"),
        Table(
            "role",
            "roles",
            110,
            (
                Link("actor", "of", "played"),
                Link("film", "in", "had"),
                Measure(
                    *("fee", "fee", 1000, 80000, 500),
                    *("paid more than {n}", "paid less than {n}", "best paid", "worst paid"),
                    total=True,
                ),
            ),
        ),
    ),
    Bridge("role", "actor", "film", "played in", "featuring", "with a role in"),
)
