"""Museum and gym: the databases that training never sees."""

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
    words,
)
from data.schemas import Bridge, Category, Domain, Label, Link, Measure, Table

MUSEUM = Domain(
    "museum",
    (
        Table("artist", "artists", 24, (people(), country(), born(1850, 1980)), who="who"),
        Table(
            "museum",
            "museums",
            20,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in ("City", "National", "Royal", "Modern", "Old")
                        for b in ("Gallery", "Museum", "Collection", "Hall")
                    ),
                ),
                located_in(),
                counted("halls", 3, 60, 1, "largest", "smallest"),
            ),
        ),
        Table(
            "painting",
            "paintings",
            60,
            (
                titles(),
                Link("artist", "by", "painted"),
                Link("museum", "shown in", "displayed"),
                Category(
                    *("style", "styles", "of the style {v}"),
                    ("Modern", "Classic", "Gothic", "Baroque"),
                ),
                price(100, 9000, 50),
            ),
        ),
    ),
)

GYM = Domain(
    "gym",
    (
        Table(
            "trainer",
            "trainers",
            22,
            (
                people(),
                Category(
                    *("sport", "sports", "specialised in {v}"),
                    ("Boxing", "Yoga", "Rowing", "Climbing"),
                ),
                age(21, 60),
            ),
            who="who",
        ),
        Table(
            "lesson",
            "lessons",
            36,
            (
                Label(
                    "title",
                    tuple(
                        f"{a} {b}"
                        for a in words("Morning Evening Power Gentle Family Team")
                        for b in words("Stretch Sprint Balance Circuit Flow Dance Lift")
                    ),
                ),
                Link("trainer", "led by", "led"),
                counted("minutes", 20, 120, 1, "longest", "shortest"),
                price(5, 60),
            ),
        ),
        Table("client", "clients", 50, (people(), lives_in(), age(16, 80)), who="who"),
        Table(
            "ticket",
            "tickets",
            110,
            (
                Link("client", "of", "bought"),
                Link("lesson", "for", "had"),
                Measure(
                    *("fee", "fee", 5, 80, 1),
                    *("paid with more than {n}", "paid with less than {n}"),
                    *("most expensive", "cheapest"),
                    total=True,
                ),
            ),
        ),
    ),
    Bridge("ticket", "client", "lesson", "joined", "joined by", "with a ticket for"),
)
