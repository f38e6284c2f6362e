"""The page about the life of a turn is true: its files exist, its names are in them, its drawing is the code's."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "life-of-a-turn.md").read_text(encoding="utf-8")
CELL = re.compile(r"`([^`]+)`")
STOPS = [
    (cells[0], CELL.findall(cells[1]), CELL.findall(cells[2]))
    for line in PAGE.splitlines()
    if line.startswith("|") and len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 5
][2:]
(DRAWING,) = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)


def defined(path):
    """Classes and functions of a file, methods too."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    return {node.name for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, kinds)}


@pytest.mark.parametrize(("stop", "files", "names"), STOPS, ids=[stop for stop, _, _ in STOPS])
def test_every_name_is_where_the_page_says(stop, files, names):
    assert files and names and not [name for name in files if not (ROOT / name).is_file()]
    there = set().union(*(defined(ROOT / name) for name in files))
    assert not set(names) - there


def test_the_drawing_and_the_table_have_the_same_stops_and_files():
    drawn = [line[4:].partition("  ") for line in DRAWING.splitlines()[2:]]
    drawn = [(stop.strip(" -+<"), re.findall(r"\S+\.py", rest)[:1]) for stop, _, rest in drawn if ".py" in rest]
    assert drawn == [(stop, files[:1]) for stop, files, _ in STOPS]
    assert {name for line in DRAWING.splitlines() for name in re.findall(r"\S+\.py", line)} <= {
        name for _, files, _ in STOPS for name in files
    }


def test_the_drawing_stands_in_the_code_too():
    told = ast.get_docstring(ast.parse((ROOT / "gagpo" / "training" / "__init__.py").read_text(encoding="utf-8")))
    indented = "\n".join(f"    {line}".rstrip() for line in DRAWING.splitlines())
    assert indented in told and told.isascii()


def test_the_site_has_it():
    assert "life-of-a-turn.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "(life-of-a-turn.md)" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
