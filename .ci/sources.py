"""The project's Python files, and functions that are too large."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("envs", "agents", "eval", "gagpo")
MAX_PARAMETERS = 8
MAX_LINES = 60
"""Of a function. Constructors of environments and ``policy_loss`` may have more parameters."""


def python_files(folders: Iterable[str], root: Path = ROOT) -> Iterator[Path]:
    """The Python files below some folders, each once; links are not followed."""
    for folder in folders:
        yield from (path for path in sorted((root / folder).rglob("*.py")) if "__pycache__" not in path.parts)


def large_functions(paths: Iterable[Path], root: Path = ROOT) -> list[str]:
    """The functions with more than ``MAX_PARAMETERS`` parameters or ``MAX_LINES`` lines, as ``path:line name``."""
    large = []
    for path in paths:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        methods = {
            id(node): owner.name for owner in ast.walk(tree) if isinstance(owner, ast.ClassDef) for node in owner.body
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                owner = methods.get(id(node), "")
                parameters = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs) - bool(owner)
                exempt = node.name == "policy_loss" or (node.name == "__init__" and owner.endswith("Env"))
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_LINES or (parameters > MAX_PARAMETERS and not exempt):
                    large.append(f"{path.relative_to(root)}:{node.lineno} {node.name}")
    return large
