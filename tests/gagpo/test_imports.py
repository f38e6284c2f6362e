"""Imports among the learning packages go one way."""

import ast
import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2] / "gagpo"
PARTS = ("cells", "credit", "objectives", "controllers", "algorithms", "training", "settings")


def modules() -> dict[str, Path]:
    found = {}
    for path in ROOT.rglob("*.py"):
        name = ".".join(("gagpo", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        if name.split(".")[1:2] and name.split(".")[1] in PARTS:
            found[name] = path
    return found


def imports(name: str, path: Path) -> set[str]:
    """What a module imports when it is loaded; the ``__init__`` above it is not counted."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_no_circles():
    files = modules()
    assert len(files) > 30 and importlib.util.find_spec("gagpo.credit.registry")
    graph = {name: imports(name, path) & files.keys() for name, path in files.items()}
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
