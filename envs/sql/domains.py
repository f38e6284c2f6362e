"""What generated databases are about: two linked tables each, and the words for them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Domain:
    """``parent`` and ``child`` are tables; each child row belongs to a parent row.

    Both have ``id`` and ``name``. category, categories: a column of the child and its values. amount: a number of the
    child, with what it is called in a question, and its range. size: a number of the parent, likewise.
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

    @property
    def plural(self) -> str:
        return self.child  # tables are named by the plural


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
UNSEEN = "clinic"  # the domain that no other split knows
