"""Shop, hotel and farm."""

from data.domains.common import (
    LAST,
    age,
    counted,
    country,
    lives_in,
    located_in,
    people,
    price,
    words,
)
from data.schemas import Bridge, Category, Domain, Label, Link, Measure, Table

SHOP = Domain(
    "shop",
    (
        Table(
            "maker",
            "makers",
            20,
            (
                Label("name", tuple(f"{name} Works" for name in LAST)),
                country(),
                counted("workers", 10, 900, 10, "largest", "smallest"),
            ),
        ),
        Table(
            "product",
            "products",
            60,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in words("Basic Classic Compact Deluxe Modern Smart Sport Urban")
                        for b in (
                            words("Bottle Chair Clock Jacket Kettle Lamp Radio Shoe Table Watch")
                        )
                    ),
                ),
                Link("maker", "from", "produced"),
                Category(
                    *("colour", "colours", "in {v}"),
                    ("Red", "Blue", "Green", "Black", "White"),
                ),
                price(5, 300),
            ),
        ),
        Table("customer", "customers", 40, (people(), lives_in(), age(18, 80)), who="who"),
        Table(
            "purchase",
            "purchases",
            120,
            (
                Link("customer", "by", "made"),
                Link("product", "of", "had"),
                counted("pieces", 1, 12, 1, "largest", "smallest"),
            ),
        ),
    ),
    Bridge("purchase", "customer", "product", "bought", "bought by", "with a purchase of"),
)

HOTEL = Domain(
    "hotel",
    (
        Table(
            "hotel",
            "hotels",
            24,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in words("Grand Royal Park Central Ocean Crown Garden")
                        for b in words("Palace Lodge Plaza House Inn")
                    ),
                ),
                located_in(),
                Measure(
                    *("stars", "number of stars", 1, 5, 1),
                    *("with more than {n} stars", "with fewer than {n} stars", "best", "worst"),
                ),
                counted("rooms", 10, 400, 2, "largest", "smallest"),
            ),
        ),
        Table("guest", "guests", 50, (people(), country(), age(18, 85)), who="who"),
        Table(
            "booking",
            "bookings",
            120,
            (
                Link("guest", "by", "made"),
                Link("hotel", "at", "received"),
                counted("nights", 1, 21, 1, "longest", "shortest"),
                price(60, 900, 5),
            ),
        ),
    ),
    Bridge("booking", "guest", "hotel", "booked", "booked by", "with a booking at"),
)

FARM = Domain(
    "farm",
    (
        Table(
            "farmer",
            "farmers",
            24,
            (
                people(),
                Category(
                    *("village", "villages", "living in {v}"),
                    ("Ashford", "Brookfield", "Millbury", "Oakham", "Stonewell"),
                ),
                age(22, 78),
            ),
            who="who",
        ),
        Table(
            "field",
            "fields",
            50,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in words("Upper Lower East West North South Long Old")
                        for b in words("Acre Meadow Hill Bottom Slope Corner Strip")
                    ),
                ),
                Link("farmer", "of", "owned"),
                Category(
                    *("crop", "crops", "planted with {v}"),
                    ("Wheat", "Barley", "Maize", "Potato", "Clover"),
                ),
                Measure(
                    *("area", "area", 2, 90, 1),
                    *("larger than {n} acres", "smaller than {n} acres", "largest", "smallest"),
                    total=True,
                ),
            ),
        ),
        Table(
            "machine",
            "machines",
            36,
            (
                Label(
                    "name",
                    tuple(
                        f"{a} {b}"
                        for a in words("Atlas Bison Condor Delta Falcon Titan")
                        for b in words("Fifty Sixty Seventy Eighty Ninety Hundred")
                    ),
                ),
                Link("farmer", "used by", "used"),
                Category(
                    *("kind", "kinds", "of the kind {v}"),
                    ("Tractor", "Harvester", "Plough", "Seeder"),
                ),
                Measure(
                    *("power", "power", 30, 400, 5),
                    *("with more than {n} horsepower", "with less than {n} horsepower"),
                    *("strongest", "weakest"),
                ),
                price(2000, 90000, 500),
            ),
        ),
    ),
)
