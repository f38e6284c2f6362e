"""The house: one name, a quick import, rooms in order, none crowded, every name once and of the field."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import gagpo

ROOT = Path(__file__).parents[1]
FLOORS = ("envs", "agents", "eval", "gagpo")
"""The four packages; each imports from itself and from those before it."""

ORDER = (
    {"options", "trackers"},
    {"credit", "objectives"},
    {"controllers"},
    {"algorithms"},
    {"formulas"},
    {"settings"},
    {"distributed"},
    {"learning"},
    {"collecting"},
    {"imitation"},
    {"training"},
    {"evaluation"},
    {"sft"},
    {"ray", "planning", "interop"},
    {"cli"},
    {"__main__"},
)
"""The rooms of ``gagpo/``; each imports from itself and from those before it, within functions too."""

INVENTED = {
    "cells", "deal", "desk", "guilty", "hall", "keeper", "ledger", "lied", "live", "nursery", "obituary", "reckoning",
    "speech", "stage", "ticket", "told", "worthless",
}  # fmt: skip
"""Words that are not the field's; none is part of a class's or a module's name."""

TWICE: dict[tuple[str, str], str] = {}
"""Classes that two modules of a package may both have, with the reason."""


def python(code, *flags, cwd=None):
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def test_the_face_is_complete_and_imports_nothing_heavy():
    heavy = "('torch', 'transformers', 'gymnasium', 'numpy', 'pydantic')"
    code = f"import gagpo, sys; assert not [m for m in {heavy} if m in sys.modules]; print(gagpo.__version__)"
    assert python(code).stdout.strip() == gagpo.__version__
    assert all(getattr(gagpo, name) is not None for name in gagpo.__all__)
    assert set(gagpo.__all__) <= set(dir(gagpo))
    code = "import gagpo.settings, sys; assert not [m for m in ('torch', 'transformers') if m in sys.modules]"
    python(code)


def test_an_environment_is_made_without_an_import_of_ours():
    code = "import gymnasium; print(type(gymnasium.make('gagpo.envs:gagpo/Math-v0').unwrapped).__module__)"
    assert python(code).stdout.strip() == "gagpo.envs.math.env"


# The graph of imports -------------------------------------------------------------------------------------------------


@cache
def modules():
    """Path of every module of the four packages, by its full name."""
    found = {}
    for top in FLOORS:
        # gagpo/{envs,agents,eval} are links to the folders beside it, which rglob does not follow
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if top == "gagpo" else ("gagpo", *parts)).removesuffix(".__init__")
            if "__pycache__" not in parts and not any(place.is_symlink() for place in path.parents):
                found[name] = path
    return found


@cache
def imported(name, lazily):
    """Modules of ours that ``name`` imports: when it is imported itself, or ``lazily`` in a function too."""
    found, pending = set(), list(ast.parse(modules()[name].read_text(encoding="utf-8")).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if lazily or isinstance(node, ast.If | ast.Try | ast.With):
            pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {one for one in found if one in modules() and one != name and not name.startswith(one + ".")}


def floor(name):
    part = name.split(".")[1] if "." in name else "gagpo"
    return FLOORS.index(part) if part in FLOORS else FLOORS.index("gagpo")


def room(name):
    return name.split(".")[1]


def circle(graph):
    """The first circle that is found in a graph, as the names along it; an empty list where there is none."""
    done, under_way = set(), []

    def visit(node):
        if node in under_way:
            return [*under_way[under_way.index(node) :], node]
        if node in done:
            return []
        under_way.append(node)
        found = next(filter(None, map(visit, sorted(graph.get(node, ())))), [])
        under_way.pop()
        done.add(node)
        return found

    return next(filter(None, map(visit, sorted(graph))), [])


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_file_is_in_a_circle_of_imports():
    assert len(modules()) > 100
    assert circle({name: imported(name, lazily=False) for name in modules()}) == []
    own = [name for name in modules() if floor(name) == FLOORS.index("gagpo")]
    assert circle({name: imported(name, lazily=True) for name in own}) == [], "in gagpo/ not even within functions"


def test_imports_go_down_the_four_packages():
    upwards = [(name, one) for name in modules() for one in imported(name, True) if floor(one) > floor(name)]
    assert [(name, one) for name, one in upwards if one != "gagpo"] == []


def test_imports_go_down_the_rooms_of_gagpo():
    level = {one: number for number, rooms in enumerate(ORDER) for one in rooms}
    own = [name for name in modules() if "." in name and floor(name) == FLOORS.index("gagpo")]
    assert {room(name) for name in own} == set(level), "ORDER names every room once"
    edges = [(name, one) for name in own for one in imported(name, True) if one in own and room(one) != room(name)]
    assert [(name, one) for name, one in edges if level[room(one)] >= level[room(name)]] == []


def test_no_folder_of_gagpo_is_in_a_circle():
    graph = defaultdict(set)
    for name in modules():
        if floor(name) == FLOORS.index("gagpo"):
            above = [modules()[one].parent for one in imported(name, True) if "." in one and floor(one) == floor(name)]
            graph[modules()[name].parent] |= {one for one in above if one != modules()[name].parent}
    graph.pop(ROOT / "gagpo")  # options.py and algorithms.py, which are rooms by themselves, and the face
    assert circle({place: {one for one in graph[place] if one in graph} for place in graph}) == []


def test_envs_never_sees_torch():
    for name, path in modules().items():
        if name.startswith("gagpo.envs"):
            assert not re.search(r"^\s*(import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE), name


# Sizes ----------------------------------------------------------------------------------------------------------------


def test_neither_the_house_nor_a_folder_is_crowded():
    inside = [path.relative_to(ROOT).parts for path in modules().values()]  # the checkout may be called gagpo too
    rooms = {parts[1] for parts in inside if parts[0] == "gagpo" and len(parts) > 2}
    assert len(rooms) <= 16, f"gagpo/ has {len(rooms)} rooms"
    files = defaultdict(list)
    for path in modules().values():
        files[path.parent].append(path.name)
    assert {str(folder): len(names) for folder, names in files.items() if len(names) > 14} == {}


@pytest.mark.parametrize("top", [*FLOORS, "tests", "benchmarks"])
def test_no_file_is_longer_than_a_subject(top):
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted((ROOT / top).rglob("*.py"))}
    assert {str(path.relative_to(ROOT)): length for path, length in lengths.items() if length > 400} == {}


# Names ----------------------------------------------------------------------------------------------------------------


def words(name):
    """The words of a CamelCase or snake_case name, small.

    >>> words("_KVCacheHall"), words("hall_keeper")
    (['kv', 'cache', 'hall'], ['hall', 'keeper'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]


@cache
def classes():
    """Name of every class with its module."""
    return [
        (node.name, name)
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]


def test_names_are_the_fields():
    assert words("_KVCacheHall") == ["kv", "cache", "hall"] and words("hall_keeper") == ["hall", "keeper"]
    named = [*classes(), *((part, name) for name in modules() for part in name.split("."))]
    assert sorted({(name, one) for one, name in named if INVENTED & set(words(one))}) == []


def test_a_class_has_a_name_of_its_own_in_its_package():
    places = defaultdict(set)
    for one, name in classes():
        places[FLOORS[floor(name)], one].add(name)
    assert {key: sorted(found) for key, found in places.items() if len(found) > 1 and key not in TWICE} == {}
    assert {key for key in TWICE if len(places[key]) < 2} == set(), "these need no leave any more"


def test_every_pin_is_a_requirement_that_pip_can_read():
    for path in (ROOT / "constraints.txt", *(ROOT / "constraints").glob("*.txt")):
        text = path.read_bytes()
        assert b"\r" not in text, path
        for line in text.decode().splitlines():
            if pin := line.partition("#")[0].strip():
                assert str(Requirement(pin).specifier).startswith("=="), f"{path.name}: {line}"
