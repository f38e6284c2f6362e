"""The house: one name, a quick import, rooms in order, none crowded, every name once and of the field."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

from packaging.requirements import Requirement

import gagpo

ROOT = Path(__file__).parents[1]
TOPS = ("envs", "agents", "eval", "gagpo")
"""The folders at the top level that hold the package."""

ORDER = (
    {"base"},
    {"data"},
    {"credit", "objectives"},
    {"envs", "trackers"},
    {"model"},
    {"agents"},
    {"controllers"},
    {"algorithms"},
    {"settings"},
    {"distributed"},
    {"runs"},
    {"eval"},
    {"learning"},
    {"collecting"},
    {"training", "sft"},
    {"planning", "interop"},
    {"sweeps"},
    {"cli"},
    {"__main__"},
)
"""The subpackages of gagpo; each imports from itself and from those before it, within functions too."""

INVENTED = {
    "cells", "deal", "desk", "guilty", "hall", "keeper", "ledger", "lied", "live", "nursery", "obituary", "reckoning",
    "speech", "stage", "ticket", "told", "worthless",
}  # fmt: skip
"""Words that are not the field's; none is part of a class's or a module's name."""

TWICE: dict[str, str] = {}
"""Classes that two modules may both have, with the reason."""


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
    """Path of every module of the package, by its full name."""
    results = {}
    for top in TOPS:
        # gagpo/{envs,agents,eval} are links to the folders beside it, which rglob does not follow
        for path in sorted((ROOT / top).rglob("*.py")):
            segments = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(segments if top == "gagpo" else ("gagpo", *segments)).removesuffix(".__init__")
            if "__pycache__" not in segments and not any(parent.is_symlink() for parent in path.parents):
                results[name] = path
    return results


@cache
def imported(name, lazily):
    """Modules of ours that ``name`` imports: when it is imported itself, or ``lazily`` in a function too."""
    results, pending = set(), list(ast.parse(modules()[name].read_text(encoding="utf-8")).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if lazily or isinstance(node, ast.If | ast.Try | ast.With):
            pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module:
            results |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        if isinstance(node, ast.Import):
            results |= {alias.name for alias in node.names}
    return {
        result
        for result in results
        if result in modules() and result not in (name, "gagpo") and not name.startswith(result + ".")
    }


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
        results = next(filter(None, map(visit, sorted(graph.get(node, ())))), [])
        under_way.pop()
        done.add(node)
        return results

    return next(filter(None, map(visit, sorted(graph))), [])


def test_a_circle_is_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) == []


def test_no_file_is_in_a_circle_of_imports():
    assert len(modules()) > 100
    assert circle({name: imported(name, lazily=True) for name in modules()}) == []


def test_imports_go_down():
    level = {item: number for number, rooms in enumerate(ORDER) for item in rooms}
    inside = [name for name in modules() if "." in name]
    assert {room(name) for name in inside} == set(level), "ORDER names every subpackage once"
    edges = [(name, item) for name in inside for item in imported(name, True) if room(item) != room(name)]
    assert [(name, item) for name, item in edges if level[room(item)] >= level[room(name)]] == []


def test_no_folder_is_in_a_circle():
    graph = defaultdict(set)
    for name, path in modules().items():
        folders = {modules()[item].parent for item in imported(name, True)} - {path.parent, *path.parent.parents}
        graph[path.parent] |= {folder for folder in folders if path.parent not in folder.parents}
    assert circle({location: {item for item in graph[location] if item in graph} for location in graph}) == []


def test_envs_never_sees_torch():
    for name, path in modules().items():
        if name.startswith("gagpo.envs"):
            assert not re.search(r"^\s*(import|from) torch\b", path.read_text(encoding="utf-8"), re.MULTILINE), name


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
    named = [*classes(), *((segment, name) for name in modules() for segment in name.split("."))]
    assert sorted({(name, item) for item, name in named if INVENTED & set(words(item))}) == []


def test_a_class_has_a_name_of_its_own():
    """In the whole product: a reader who searches for a name finds one class."""
    locations = defaultdict(set)
    for class_name, module in classes():
        locations[class_name].add(module)
    assert {
        name: sorted(results) for name, results in locations.items() if len(results) > 1 and name not in TWICE
    } == {}
    assert {name for name in TWICE if len(locations[name]) < 2} == set(), "these need no leave any more"


def test_every_pin_is_a_requirement_that_pip_can_read():
    for path in (ROOT / "constraints.txt", *(ROOT / "constraints").glob("*.txt")):
        text = path.read_bytes()
        assert b"\r" not in text, path
        for line in text.decode().splitlines():
            if pin := line.partition("#")[0].strip():
                assert str(Requirement(pin).specifier).startswith("=="), f"{path.name}: {line}"
