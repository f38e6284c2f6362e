"""Data of the installed alfworld package: domain, grammar, goals and affordances.

The package's files are parsed, not imported: importing alfworld makes a folder under ``$ALFWORLD_DATA`` and loads many
other packages.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gagpo.base.errors import GagpoError


class AlfworldMissing(GagpoError, ImportError):
    """The alfworld package is not installed, or its version cannot be read."""


@dataclass(frozen=True)
class PackageData:
    """The package's data.

    domain: PDDL text.
    grammar: text grammar with ``UNKNOWN GOAL`` in place of the task.
    goals: task type -> (PDDL of the goal with {obj}, {recep}, {toggle}; task texts with the same fields).
    contains: receptacle type -> types of objects that it can hold.
    openable: receptacle types that open.
    abilities: ``cleanable``, ``heatable``, ``coolable``, ``sliceable``, ``toggleable`` -> object types.
    vessels: object types that can hold other objects.
    kinds: all types of objects and receptacles.
    """

    domain: str
    grammar: str
    goals: dict[str, tuple[str, tuple[str, ...]]]
    contains: dict[str, frozenset[str]]
    openable: frozenset[str]
    abilities: dict[str, frozenset[str]]
    vessels: frozenset[str]
    kinds: frozenset[str]


@functools.cache
def package_data() -> PackageData:
    """Read the installed package once; raises :class:`AlfworldMissing` with advice."""
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise AlfworldMissing(
            "generating ALFWorld games needs the alfworld package", advice="pip install alfworld==0.4.2"
        )
    root = Path(next(iter(spec.submodule_search_locations)))
    try:
        constants = _assignments(root / "gen" / "constants.py")
        contains = {key: frozenset(value) for key, value in constants["VAL_RECEPTACLE_OBJECTS"].items()}
        tables = contains.pop("TableTop", frozenset())
        for table in ("DiningTable", "CoffeeTable", "SideTable"):
            contains.setdefault(table, tables)
        goals = {
            name: (goal["pddl"].replace("#", "-"), tuple(goal["templates"]))
            for name, goal in _assignments(root / "gen" / "goal_library.py").items()
            if isinstance(goal, dict) and "pddl" in goal
        }
        return PackageData(
            domain=(root / "data" / "alfred.pddl").read_text(encoding="utf-8"),
            grammar=(root / "data" / "alfred.twl2").read_text(encoding="utf-8"),
            goals=goals,
            contains=contains,
            openable=frozenset(constants["OPENABLE_CLASS_LIST"]),
            abilities={key.lower(): frozenset(value) for key, value in constants["VAL_ACTION_OBJECTS"].items()},
            vessels=frozenset(constants["MOVABLE_RECEPTACLES"]),
            kinds=frozenset(constants["OBJECTS"]) | frozenset(constants["RECEPTACLES"]),
        )
    except (OSError, KeyError, SyntaxError) as error:
        raise AlfworldMissing(
            f"the alfworld package in {root} is not the one expected (0.4.2): {type(error).__name__}: {error}"
        ) from None


def _assignments(path: Path) -> dict[str, Any]:
    """Literal assignments of a Python file: ``NAME = literal`` and ``table["key"] = literal``."""
    values: dict[str, Any] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Name):
            name = target.id
        elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
            name = str(target.slice.value)
        else:
            continue
        try:
            values[name] = ast.literal_eval(node.value)
        except ValueError:
            continue  # computed values are not needed
    return values
