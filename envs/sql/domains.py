"""The domains of generated databases: two linked tables, and words for them."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """Two tables with the columns ``id`` and ``name``; each row of ``child`` belongs to a row of ``parent``.

    child_word, parent_word: words for one row in a question; the table's name is the plural.
    link: column of the child with the parent's id.
    category, categories: column of the child, and its values.
    amount, amount_range: numeric column of the child, and its range.
    size, size_range: numeric column of the parent, and its range.
    parents, children: names to draw from.
    """

    parent: str
    child: str
    child_word: str
    parent_word: str
    link: str
    category: str
    categories: tuple[str, ...]
    amount: str
    amount_range: tuple[int, int]
    size: str
    size_range: tuple[int, int]
    parents: tuple[str, ...]
    children: tuple[str, ...]


_PEOPLE = (
    *("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "Jana", "Karl", "Lena", "Milo", "Nora"),
    *("Omar", "Pia", "Quin", "Rosa", "Sven", "Tess", "Uma", "Vera", "Will", "Xena", "Yara", "Zoe"),
)
_TITLES = (
    *("Dawn", "Ember", "Falcon", "Garden", "Harbor", "Island", "Jungle", "Kingdom", "Lantern", "Meadow", "Needle"),
    *("Orchard", "Prairie", "Quartz", "River", "Shadow", "Thunder", "Umbra", "Valley", "Winter", "Yonder", "Zenith"),
)
_TOWNS = ("Aston", "Brill", "Corby", "Derry", "Epping", "Frome", "Goole", "Hythe", "Ilkley", "Jarrow")

DOMAINS = {
    "school": Domain(
        *("classes", "students", "student", "class", "class_id", "hobby"),
        ("chess", "music", "running", "drawing", "drama"),
        *("age", (10, 60), "room", (100, 400), ("Red", "Blue", "Green", "Gold", "Grey", "White"), _PEOPLE),
    ),
    "library": Domain(
        *("authors", "books", "book", "author", "author_id", "genre"),
        ("fiction", "history", "science", "poetry", "travel"),
        *("pages", (80, 900), "born", (1850, 2000), _PEOPLE[::3], _TITLES),
    ),
    "shop": Domain(
        *("makers", "products", "product", "maker", "maker_id", "color"),
        ("red", "blue", "black", "white", "green"),
        *("price", (5, 500), "founded", (1900, 2020), ("Acme", "Boldo", "Corex", "Dynal", "Evora", "Fenix"), _TITLES),
    ),
    "airline": Domain(
        *("airports", "flights", "flight", "airport", "airport_id", "status"),
        ("early", "late", "landed", "boarding", "cancelled"),
        *("distance", (100, 9000), "gates", (2, 90), _TOWNS, tuple(f"F{n}" for n in range(101, 131))),
    ),
    "museum": Domain(
        *("halls", "paintings", "painting", "hall", "hall_id", "style"),
        ("cubist", "baroque", "modern", "gothic", "abstract"),
        *("year", (1400, 2000), "floor", (1, 9), ("North", "South", "East", "West", "Tower"), _TITLES),
    ),
    "clinic": Domain(
        *("doctors", "patients", "patient", "doctor", "doctor_id", "ward"),
        ("eyes", "heart", "bones", "skin", "lungs"),
        *("weight", (40, 120), "salary", (3000, 9000), _PEOPLE[1::3], _PEOPLE),
    ),
}
UNSEEN = "clinic"  # only in the split ``unseen``


# Domains of made-up words ---------------------------------------------------------------------------------------------

_ONSETS = (
    *"bcdfghjklmnprstvwyz",
    *("br", "ch", "cl", "cr", "dr", "fl", "fr", "gl", "gr", "pl", "pr", "qu", "sh", "sk", "sl", "sp", "st", "th", "tr"),
)
_VOWELS = (*"aeiouaeiouy", "ai", "au", "ea", "ee", "ie", "oa", "oo", "ou")
_CODAS = (
    *[""] * 12,
    *"bcdgklmnprstx",
    *("ck", "ct", "ft", "ght", "ld", "lf", "ll", "lt", "mp", "nd", "ng", "nk", "nt", "rd", "rk", "rm", "rn", "rt"),
    *("sh", "sk", "ss", "st", "th"),
)
_KEYWORDS = {  # SQLite keywords that a made-up word could equal, and ``name``, a column of every table
    *("before", "begin", "between", "cascade", "case", "check", "collate", "commit", "create", "cross", "current"),
    *("default", "deferred", "delete", "drop", "fail", "filter", "following", "from", "glob", "group", "groups"),
    *("having", "left", "like", "limit", "name", "natural", "nothing", "plan", "pragma", "preceding", "primary"),
    *("query", "raise", "range", "release", "rename", "replace", "returning", "table", "temp", "then", "ties"),
    *("trigger", "with", "without"),
}
_RANGES = ((1, 60), (5, 500), (10, 90), (40, 300), (100, 9000), (1200, 2000), (3000, 9000))  # of numbers in a column


def _plural(word: str) -> str:
    """The English plural."""
    if word.endswith("y") and word[-2] not in "aeiou":
        return f"{word[:-1]}ies"
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    return f"{word}s"


def invent_domain(seed: str) -> Domain:
    """A domain with made-up names for tables, columns, categories and rows."""
    rng = random.Random(f"domain {seed}")
    used_words = {*_KEYWORDS}

    def word() -> str:
        while True:
            candidate = "".join(
                rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
                for _ in range(rng.choice((1, 2, 2, 2, 3)))
            )
            if len(candidate) > 3 and used_words.isdisjoint((candidate, _plural(candidate))):
                used_words.update((candidate, _plural(candidate)))
                return candidate

    parent, child, category, amount, size = (word() for _ in range(5))
    codes = rng.random() < 0.25  # some rows have numbers for names, like flights
    letter = chr(rng.randrange(65, 91))
    first = 100 * rng.randint(1, 9)
    return Domain(
        *(_plural(parent), _plural(child), child, parent, f"{parent}_id", category),
        tuple(word() for _ in range(5)),
        *(amount, rng.choice(_RANGES), size, rng.choice(_RANGES)),
        tuple(word().capitalize() for _ in range(6)),
        tuple(f"{letter}{first + n}" for n in range(24)) if codes else tuple(word().capitalize() for _ in range(24)),
    )
