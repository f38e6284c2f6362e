"""The size of the project next to its limits, as one table.

python .ci/budgets.py                    print the table
python .ci/budgets.py --check            exit with 1 if a limit is exceeded
python .ci/budgets.py --times FILE       add the CPU time of the tests, as the shell's `times` wrote it into FILE
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import typer
from pydantic import BaseModel

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import PRODUCT, ROOT, large_functions, python_files
from style import places

OUTSIDE_CORE = (
    *(
        f"envs/{name}"
        for name in ("alfworld", "webshop", "math", "sql", "web", "reasoning_gym", "scienceworld", "terminal")
    ),
    *(f"gagpo/{name}" for name in ("cli", "interop", "planning")),
    "eval",
)
"""Folders that may grow freely: the benchmarks' environments, commands, other suites, measuring and planning."""


GENERATED = ("settings.md", "board.md")
"""Pages that are printed by a tool from code or results, and so have no limit."""


@dataclass(frozen=True)
class Budget:
    """A row of the table.

    value: None where it was not measured.
    limit: None where any size is allowed.
    binding: whether a value over the limit fails the check.
    """

    name: str
    value: float | None
    limit: float | None
    binding: bool = True

    @property
    def exceeded(self) -> bool:
        return self.value is not None and self.limit is not None and self.value > self.limit


def lines(paths: Iterable[Path]) -> int:
    """Lines of text files."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def code_lines(source: str) -> int:
    """Lines that hold code: no comments, docstrings or blank lines.

    >>> code_lines("x = 1  # why\\n\\n# a comment\\ny = (2,\\n3)\\n")
    3
    """
    counted: set[int] = set()
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in ignored:
            counted.update(range(token.start[0], token.end[0] + 1))
    return len(counted - _docstring_lines(ast.parse(source)))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of strings that stand alone as a statement: docstrings, and those below a constant or an attribute."""
    strings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return {line for node in strings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}


def core_files(root: Path = ROOT) -> Iterator[Path]:
    """The Python files of the core."""
    outside = [root / folder for folder in OUTSIDE_CORE]
    for path in python_files(PRODUCT, root):
        if not any(path.is_relative_to(folder) for folder in outside):
            yield path


def words(paths: Iterable[Path]) -> int:
    """Words of text files: whatever stands between blanks and holds a letter or a digit."""
    return sum(len(re.findall(r"\S*\w\S*", path.read_text(encoding="utf-8"))) for path in paths)


def run_keys(section: type[BaseModel], path: str = "") -> list[str]:
    """The keys of a run that hold a value, with dots. ``algorithm`` and ``engine.options`` count as one key each.

    What stands below them belongs to what a registry finds, an algorithm or an engine, also of another package.
    """
    from gagpo.settings.keys import options

    found = []
    for name, field in section.model_fields.items():
        place = f"{path}.{name}".strip(".")
        inner = [] if place in ("algorithm", "engine.options") else options(field.annotation)
        found += [key for option in inner for key in run_keys(option, place)] or [place]
    return list(dict.fromkeys(found))


def commands(app: typer.Typer) -> list[str]:
    """The commands of an application, those of groups with the group's name."""
    found = [info.name or getattr(info.callback, "__name__", "") for info in app.registered_commands]
    for group in app.registered_groups:
        inner = commands(group.typer_instance) if group.typer_instance else []
        found += [f"{group.name} {name}" for name in inner]
        if group.invoke_without_command is True:
            found.append(str(group.name))
    return sorted(name.replace("_", "-") for name in found)


def bytes_below(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def child_minutes(times: str) -> float:
    """CPU minutes of a shell's children, from what its ``times`` printed.

    >>> child_minutes("0m0.010s 0m0.020s\\n1m30.000s 0m30.000s\\n")
    2.0
    """
    parts = re.findall(r"(\d+)m([\d.]+)s", times.splitlines()[1])
    return sum(int(minutes) + float(seconds) / 60 for minutes, seconds in parts)


def budgets(times: Path | None = None) -> list[Budget]:
    """Every size that has a limit."""
    from gagpo.cli.main import app
    from gagpo.settings import RunSettings

    pages = [page for page in sorted((ROOT / "docs").glob("*.md")) if page.name not in GENERATED]
    core = sum(code_lines(path.read_text(encoding="utf-8")) for path in core_files())
    minutes = child_minutes(times.read_text(encoding="utf-8")) if times else None
    return [
        # No limit, which once made features go for size; the reading path has one (tests/test_reading_path.py).
        Budget("core, lines of code", core, None),
        Budget("product, lines of Python", lines(python_files(PRODUCT)), None),
        Budget("tests, lines of Python", lines(python_files(["tests"])), None),
        Budget("functions over the limits", len(large_functions(python_files(PRODUCT))), 0),
        Budget("names that are pronouns", len(places(python_files(PRODUCT), "pronouns")), 0),
        Budget("README, words", words([ROOT / "README.md"]), 1_000),
        Budget("docs not generated, words", words(pages), 28_000),
        Budget("longest page, words", max(words([page]) for page in pages), 2_000),
        Budget("lab, words", words((ROOT / "lab").rglob("*.md")), None),
        Budget("run keys", len(run_keys(RunSettings)), 106),  # 115 with the options of vLLM servers
        Budget("commands", len(commands(app)), None),
        Budget("shipped models, MB", bytes_below(ROOT / "gagpo" / "starters") / 1e6, 20),
        # A busy machine takes more CPU time for the same tests, so that this one is told and does not fail.
        Budget("make test, CPU minutes", minutes, 15, binding=False),
    ]


def table(rows: Iterable[Budget]) -> str:
    """The rows as text."""
    written = [f"{'':28}{'value':>14}{'limit':>10}"]
    for row in rows:
        value = "not measured" if row.value is None else f"{row.value:,.1f}".removesuffix(".0")
        limit = "-" if row.limit is None else f"{row.limit:,}"
        written.append(f"{row.name:28}{value:>14}{limit:>10}{'  exceeded' if row.exceeded else ''}")
    return "\n".join(written)


def main() -> int:
    parser = argparse.ArgumentParser(description="The size of the project next to its limits.")
    parser.add_argument("--times", type=Path, help="a file with the output of the shell's `times` after the tests")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a binding limit is exceeded")
    given = parser.parse_args()
    rows = budgets(given.times)
    print(table(rows))
    return int(given.check and any(row.exceeded and row.binding for row in rows))


if __name__ == "__main__":
    sys.exit(main())
