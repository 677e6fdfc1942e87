"""Football and zoo."""

from data.domains.common import age, counted, country, people, salary, words
from data.schemas import Bridge, Category, Domain, Label, Link, Measure, Table

_PETS = words(
    "Abby Bruno Chico Daisy Echo Fifi Gizmo Hazel Iggy Jojo Kiki Lola Milo Nala Otis Pippa "
    "Quincy Rocky Simba Tango Ursa Vito Waldo Xena Yogi Zara Amber Biscuit Coco Dusty Ember "
    "Frodo Ginger Honey Indigo Jasper Koko Lucky Mango Nemo Opal Pepper Rusty Shadow Toffee "
    "Ulla Velma Willow Yuki Ziggy Archie Bella Cleo Duke"
)

FOOTBALL = Domain(
    "football",
    (
        Table(
            "club",
            "clubs",
            22,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in ("Red", "White", "Golden", "Silver", "Iron")
                        for b in ("Lions", "Eagles", "Wolves", "Bulls", "Sharks")
                    ),
                ),
                country(),
                Measure(
                    *("founded", "founding year", 1880, 1990, 1),
                    *("founded after {n}", "founded before {n}", "newest", "oldest"),
                    year=True,
                ),
            ),
        ),
        Table(
            "player",
            "players",
            90,
            (
                people(),
                Link("club", "under contract with", "hired"),
                Category(
                    *("position", "positions", "in the position {v}"),
                    ("Goalkeeper", "Defender", "Midfielder", "Forward"),
                ),
                Measure(
                    *("age", "age", 17, 39, 1),
                    *("older than {n}", "younger than {n}", "oldest", "youngest"),
                ),
                counted("goals", 0, 140, 1, "most successful", "least successful"),
            ),
            who="who",
        ),
        Table(
            "sponsor",
            "sponsors",
            20,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in words("Alpha Nova Orion Vega Zenith")
                        for b in words("Bank Foods Motors Energy Air")
                    ),
                ),
                Category(
                    *("sector", "sectors", "of the sector {v}"),
                    ("Finance", "Travel", "Food", "Energy"),
                ),
            ),
        ),
        Table(
            "deal",
            "deals",
            60,
            (
                Link("sponsor", "of", "signed"),
                Link("club", "with", "closed"),
                Measure(
                    *("amount", "amount", 5000, 90000, 500),
                    *("worth more than {n}", "worth less than {n}"),
                    *("most valuable", "least valuable"),
                    total=True,
                ),
            ),
        ),
    ),
    Bridge("deal", "sponsor", "club", "supported", "supported by", "with a deal with"),
)

ZOO = Domain(
    "zoo",
    (
        Table(
            "zone",
            "zones",
            20,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in words("Bamboo Cedar Coral Lotus Maple Willow")
                        for b in words("House Lake Grove Cliff")
                    ),
                ),
                Category(
                    *("climate", "climates", "with the climate {v}"),
                    ("Tropical", "Desert", "Polar", "Temperate"),
                ),
                Measure(
                    *("area", "area", 100, 3000, 20),
                    *("larger than {n} metres", "smaller than {n} metres", "largest", "smallest"),
                    total=True,
                ),
            ),
        ),
        Table(
            "animal",
            "animals",
            50,
            (
                Label(
                    "name",
                    tuple(
                        _PETS,
                    ),
                ),
                Link("zone", "kept in", "housed"),
                Category(
                    *("species", "species", "of the species {v}"),
                    ("Lion", "Zebra", "Penguin", "Monkey", "Otter", "Camel"),
                ),
                Measure(
                    *("weight", "weight", 4, 400, 2),
                    *("heavier than {n} kilos", "lighter than {n} kilos", "heaviest", "lightest"),
                    total=True,
                ),
            ),
        ),
        Table("keeper", "keepers", 24, (people(), age(20, 64), salary(1800, 4200)), who="who"),
        Table(
            "feeding",
            "feedings",
            110,
            (
                Link("keeper", "by", "did"),
                Link("animal", "of", "received"),
                counted("minutes", 5, 90, 1, "longest", "shortest"),
            ),
        ),
    ),
    Bridge("feeding", "keeper", "animal", "fed", "fed by", "with a feeding of"),
)
