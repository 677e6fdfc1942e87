"""School and clinic."""

from data.domains.common import age, counted, lives_in, people, salary, words
from data.schemas import Bridge, Category, Domain, Label, Link, Measure, Table

SCHOOL = Domain(
    "school",
    (
        Table("teacher", "teachers", 20, (people(), age(25, 66), salary(2200, 6000)), who="who"),
        Table(
            "course",
            "courses",
            30,
            (
                Label(
                    "title",
                    tuple(
                        f"{subject} {level}"
                        for subject in words(
                            "Algebra Biology Chemistry Drawing Geography History Latin Music "
                            "Physics Statistics"
                        )
                        for level in ("One", "Two", "Three", "Four")
                    ),
                ),
                Link("teacher", "taught by", "taught"),
                Category(
                    *("room", "rooms", "held in {v}"),
                    ("Lab", "Hall", "Studio", "Annex", "Library"),
                ),
                counted("hours", 10, 120, 2, "longest", "shortest"),
            ),
        ),
        Table(
            "student",
            "students",
            60,
            (
                people(),
                lives_in(),
                Category(
                    *("level", "levels", "at the level {v}"),
                    ("Beginner", "Middle", "Advanced", "Expert"),
                ),
                age(15, 80),
            ),
            who="who",
        ),
        Table(
            "exam",
            "exams",
            120,
            (
                Link("student", "taken by", "took"),
                Link("course", "in", "had"),
                Measure(
                    *("mark", "mark", 1, 100, 1),
                    *("marked above {n}", "marked below {n}", "best", "worst"),
                ),
            ),
        ),
    ),
    Bridge("exam", "student", "course", "took", "taken by", "with an exam in"),
)

CLINIC = Domain(
    "clinic",
    (
        Table(
            "doctor",
            "doctors",
            24,
            (
                people(),
                Category(
                    *("specialty", "specialties", "working in {v}"),
                    ("Surgery", "Cardiology", "Neurology", "Dentistry", "Pediatrics"),
                ),
                salary(4000, 12000),
            ),
            who="who",
        ),
        Table(
            "patient",
            "patients",
            60,
            (
                people(),
                lives_in(),
                age(1, 95),
                Measure(
                    *("weight", "weight", 10, 120, 1),
                    *("heavier than {n} kilos", "lighter than {n} kilos", "heaviest", "lightest"),
                ),
            ),
            who="who",
        ),
        Table(
            "visit",
            "visits",
            110,
            (
                Link("patient", "of", "made"),
                Link("doctor", "to", "received"),
                Measure(
                    *("cost", "cost", 20, 600, 5),
                    *("costing more than {n}", "costing less than {n}"),
                    *("most expensive", "cheapest"),
                    total=True,
                ),
            ),
        ),
        Table(
            "drug",
            "drugs",
            24,
            (
                Label(
                    "name",
                    tuple(
                        start + end
                        for start in ("Cal", "Dora", "Lumi", "Neri", "Sora", "Vita")
                        for end in ("dol", "mex", "phen", "stat", "vir")
                    ),
                ),
                Link("doctor", "prescribed by", "prescribed"),
                Category(
                    *("form", "forms", "in the form {v}"),
                    ("Tablet", "Syrup", "Cream", "Spray"),
                ),
                Measure(
                    *("dose", "dose", 10, 500, 10),
                    *("dosed above {n}", "dosed below {n}", "strongest", "weakest"),
                ),
            ),
        ),
    ),
    Bridge("visit", "patient", "doctor", "visited", "visited by", "with a visit to"),
)
