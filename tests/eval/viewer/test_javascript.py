"""The form of the viewer's scripts, style sheets and pages, and of the report's templates."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from gagpo.data import INVALID_REASONS, Invalid

EVAL = Path(__file__).parents[3] / "eval"
SCRIPTS = sorted((EVAL / "viewer" / "page").glob("*.js"))
FILES = [*SCRIPTS, *sorted((EVAL / "viewer" / "page").glob("*.[hc]*")), *sorted((EVAL / "report").glob("templates/*"))]
MAX_LETTERS, MAX_LINES = 120, 60
PRONOUNS = "one|ones|found|own|made|known|given|kept|said|seen|told|mine|ours|theirs|asked|wanted|shown|others|chosen"

EXPRESSION = re.compile(r"(?:^`|\})[^$]*(?:\$(?!\{)[^$]*)*(?:\$\{|`$)")  # the text of a template between expressions


def code(line: str) -> str:
    """A line of JavaScript without comments and without the text in strings."""
    line = re.sub(r'"(?:\\.|[^"\\])*"', '""', line)
    line = re.sub(r"`(?:\\.|\$\{[^{}]*\}|[^`\\])*`", lambda match: f"`{EXPRESSION.sub(' # ', match[0])}`", line)
    return re.sub(r"//.*", "", line)


def functions(text: str) -> dict[str, int]:
    """Lines of each function on the first level of a script: from its head to the brace with the same indent."""
    lengths, head, start = {}, "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if re.match(r"  (async )?(function|viewer\.\w+ =|const \w+ = (async )?\()", line):
            head, start = line.strip(), number
        if head and re.match(r"  [}\])]|  \S.*;$", line):
            lengths[head], head = number - start + 1, ""
    return lengths


def test_the_checks_see_what_they_should():
    assert code('f("one; two"); // three') == 'f(""); '
    assert code("g(`one; ${a.b} two ${c}`);") == "g(` # a.b # c # `);"
    text = "(() => {\n  function short() {\n    go();\n  }\n  viewer.long = (x) => {\n    a();\n    b();\n  };\n})();\n"
    assert functions(text) == {"function short() {": 3, "viewer.long = (x) => {": 4}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_lines_are_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert [number for number, line in enumerate(lines, 1) if len(line) > MAX_LETTERS] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_line_has_one_statement_and_a_function_few_lines(path):
    text = path.read_text(encoding="utf-8")
    lines = [code(line) for line in text.splitlines()]
    stacked = [
        line
        for line in lines
        if (re.search(r";\s*\S", line) and not re.search(r"\bfor \(", line))
        or re.match(r"\s*(const|let) \w+ = [^({\[]*,$", line)
    ]
    assert stacked == []
    assert [line for line in lines if re.search(r" \? [^#]* : [^#,)]* \? ", line)] == [], (
        "chained conditional expressions"
    )
    assert {name: length for name, length in functions(text).items() if length > MAX_LINES} == {}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_names_are_no_pronouns(path):
    lines = [code(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line for line in lines if re.search(rf"(?<![.\w]){PRONOUNS.join(('(?:', ')'))}(?![\w:])", line)] == []


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_parsed(path):
    if shutil.which("node") is None:
        pytest.skip("node is not installed; the tests of the pages parse the scripts in Chromium")
    subprocess.run(["node", "--check", str(path)], check=True, timeout=60)


def test_every_reason_of_an_invalid_turn_has_a_text():
    assert INVALID_REASONS.keys() == set(get_args(Invalid)) - {""}
    scripts = "".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
    assert [text for text in INVALID_REASONS.values() if scripts.count(f'"{text}"')] == []
