"""Measures of how the product's code reads, per 1,000 lines, and the places that count.

python .ci/style.py                      print the table
python .ci/style.py --list pronouns      print the places of one measure
python .ci/style.py --by-folder          print the table for every folder
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from sources import PRODUCT, ROOT, large_functions, python_files

PRONOUNS = {
    "asked", "came", "everyone", "found", "given", "gone", "heard", "hers", "his", "it", "its", "kept",
    "known", "left", "made", "mine", "one", "ones", "others", "ours", "own", "said", "seen", "shown",
    "spared", "such", "taken", "theirs", "them", "these", "they", "those", "told", "wanted", "what", "who",
    "whom", "whose", "yours",
}  # fmt: skip
"""Words that do not say what a name contains. They are no names, and with a shape suffix (``own_E``) none either."""


SMALL_THINGS = {"form", "kind", "most", "part", "piece", "place", "rest", "sign", "thing", "whole", "words"}
"""Words that say how a thing lies to another one, and not what it holds (``offset``, ``segment``, ``limit``)."""

FIELD = {"pronouns": "0.1 to 0.8", "small": "0.3 to 6.8"}
"""Per 1,000 names in eight other code bases (nanochat, httpx, verifiers, TRL, prime-rl, SkyRL, Tinker, torchtitan)."""

FILE_KEYS = {"kept"}
"""Fields of stored episodes: a key of a file format keeps its name."""


@dataclass(frozen=True)
class Place:
    """Where a measure counts something. text: the name, or the beginning of the expression."""

    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} {self.text}"


def is_pronoun(name: str) -> bool:
    """Whether a name is a pronoun, alone, with leading underscores, or with a shape suffix.

    >>> [is_pronoun(name) for name in ("own_E", "_found", "one", "own_episodes", "foundation")]
    [True, True, True, False, False]
    """
    return _stem(name) in PRONOUNS


def is_small_thing(name: str) -> bool:
    """The same for a word of a small thing, or its plural.

    >>> [is_small_thing(name) for name in ("place_K", "_parts", "most_tokens", "words")]
    [True, True, False, True]
    """
    return bool({_stem(name), _stem(name).removesuffix("s")} & SMALL_THINGS)


def _stem(name: str) -> str:
    """A name without leading underscores and shape suffix."""
    stem, _, suffix = name.strip("_").partition("_")
    return stem if not suffix or (suffix.isupper() and len(suffix) <= 3) else name.strip("_")


def bound_names(node: ast.AST) -> Iterator[str]:
    """The names that a node of the syntax tree binds: variables, parameters, fields, functions, classes."""
    if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
        yield node.id if isinstance(node, ast.Name) else node.attr
    if isinstance(node, ast.arg):
        yield node.arg
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    if isinstance(node, ast.MatchAs | ast.MatchStar | ast.ExceptHandler) and node.name:
        yield node.name


def pronouns(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that are pronouns, by line, where they are bound; ``left`` is none in a file that has a ``right``."""
    bindings = [(node.lineno, name) for node in ast.walk(tree) for name in bound_names(node)]  # type: ignore[attr-defined]
    sides = {"left"} if any(name == "right" for _, name in bindings) else set()
    for line, name in bindings:
        if is_pronoun(name) and name not in sides | FILE_KEYS:
            yield line, name


def small_things(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Names that are words of small things, by line, where they are bound."""
    for node in ast.walk(tree):
        yield from ((node.lineno, name) for name in bound_names(node) if is_small_thing(name))  # type: ignore[attr-defined]


def conditional_expressions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Conditional expressions, by line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            yield node.lineno, ast.unparse(node)[:60]


def chained_conditionals(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Conditional expressions with another one as their value, by line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp) and any(isinstance(value, ast.IfExp) for value in (node.body, node.orelse)):
            yield node.lineno, ast.unparse(node)[:60]


def stacked_assignments(tree: ast.Module, at_least: int = 2) -> Iterator[tuple[int, str]]:
    """Assignments of several values to several targets in one statement, by line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and len(target.elts) >= at_least:
                    yield node.lineno, ast.unparse(target)[:60]


def triple_assignments(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Assignments of three or more values in one statement, by line."""
    return stacked_assignments(tree, at_least=3)


MEASURES: dict[str, tuple[str, Callable[[ast.Module], Iterator[tuple[int, str]]]]] = {
    "pronouns": ("names that are pronouns", pronouns),
    "small": ("names that are words of small things", small_things),
    "conditionals": ("conditional expressions", conditional_expressions),
    "chained": ("chained conditional expressions", chained_conditionals),
    "stacked": ("assignments of several values", stacked_assignments),
    "triples": ("assignments of three or more values", triple_assignments),
}
"""By option: what is counted, and how."""


def comment_lines(source: str) -> int:
    """Lines that consist of a comment or end in one; directives to tools do not count.

    >>> comment_lines("x = 1  # why\\n# more\\ny = 2  # type: ignore[misc]\\n")
    2
    """
    directives = ("# type:", "# noqa", "# fmt:", "# pragma:", "#!")
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return sum(token.type == tokenize.COMMENT and not token.string.startswith(directives) for token in tokens)


def places(paths: Iterable[Path], measure: str) -> list[Place]:
    """Everything that a measure counts in some files."""
    count = MEASURES[measure][1]
    return [
        Place(path, line, text)
        for path in paths
        for line, text in sorted(count(ast.parse(path.read_text(encoding="utf-8"))))
    ]


def table(paths: list[Path]) -> str:
    """The measures of some files: how many, and per 1,000 lines."""
    sources = [path.read_text(encoding="utf-8") for path in paths]
    lines = sum(len(source.splitlines()) for source in sources)
    rows = [f"{lines:,} lines of Python in {len(paths)} files", f"{'':38}{'number':>8}{'per 1,000 lines':>18}"]
    for measure, (title, _) in MEASURES.items():
        number = len(places(paths, measure))
        rows.append(f"{title:38}{number:>8,}{1000 * number / lines:>18.1f}")
    comments = sum(map(comment_lines, sources))
    rows.append(f"{'comment lines':38}{comments:>8,}{1000 * comments / lines:>18.1f}")
    rows.append(f"{'functions over the limits':38}{len(large_functions(paths)):>8,}")
    return "\n".join(rows)


def names_table(rooms: dict[str, list[Path]]) -> str:
    """Names that say little, per 1,000 bound names, by room and in other code bases."""
    rows = [f"{'per 1,000 names':38}{''.join(f'{room:>12}' for room in rooms)}{'others':>14}"]
    totals = {
        room: sum(len(list(bound_names(node))) for tree in map(_tree, paths) for node in ast.walk(tree))
        for room, paths in rooms.items()
    }
    for measure, others in FIELD.items():
        rates = [1000 * len(places(paths, measure)) / max(1, totals[room]) for room, paths in rooms.items()]
        rows.append(f"{MEASURES[measure][0]:38}{''.join(f'{rate:>12.1f}' for rate in rates)}{others:>14}")
    return "\n".join(rows)


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures of how the code reads.")
    parser.add_argument("--list", choices=MEASURES, help="print the places of one measure")
    parser.add_argument("--by-folder", action="store_true", help="print the table for every folder")
    parser.add_argument("folders", nargs="*", default=PRODUCT, help="folders to read; the whole product by default")
    arguments = parser.parse_args()
    paths = list(python_files(arguments.folders))
    if arguments.list:
        print(*places(paths, arguments.list), sep="\n")
    elif arguments.by_folder:
        folders: dict[Path, list[Path]] = defaultdict(list)
        for path in paths:
            folders[path.relative_to(ROOT).parent].append(path)
        for folder, files in sorted(folders.items()):
            print(f"{folder}\n{table(files)}\n")
    else:
        print(table(paths))
        print()
        print(names_table({"product": list(python_files(PRODUCT)), "tests": list(python_files(["tests"]))}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
