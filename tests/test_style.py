"""How the product's code reads: names, plain shapes, sizes of functions."""

import ast
import re

import pytest

from tests.test_budgets import budgets, tool

style = tool("style")


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("one = 1", ["one"]),
        ("own_E, other = f()", ["own_E"]),
        ("self._found = {}", ["_found"]),
        ("def found(made, *given, **theirs): pass", ["found", "given", "made", "theirs"]),
        ("[x for found in rows]", ["found"]),
        ("class Card:\n    said: str = ''", ["said"]),
        ("left, right = split(text)", []),
        ("left = 1", ["left"]),
        ("foundation = own_weights = one_hot = 0", []),
        ("print(one)", []),
    ],
)
def test_names_that_say_nothing_are_seen(code, names):
    assert sorted(name for _, name in style.pronouns(ast.parse(code))) == names


def test_shapes_are_counted():
    tree = ast.parse("a, b = 1, 2\nc, d, e = 1, 2, 3\nf, g = pair()\nh = 1 if a else 2 if b else 3\n")
    assert [len(list(count(tree))) for _, count in style.MEASURES.values()] == [0, 0, 2, 1, 2, 1]


def test_words_of_small_things_are_counted(tmp_path):
    (tmp_path / "a.py").write_text("place_K = parts = 1\nplacement = most_tokens = own = 2\n")
    assert [name for _, name in style.small_things(ast.parse((tmp_path / "a.py").read_text()))] == ["place_K", "parts"]
    rows = style.names_table({"product": [tmp_path / "a.py"]}).splitlines()
    assert [row.split()[-4] for row in rows[1:]] == ["200.0", "400.0"]


def test_comments_are_counted_without_directives():
    assert style.comment_lines('"""# no"""\nx = "# no"  # why\n# and why\ny = 1  # noqa: E501\n') == 2


@pytest.mark.parametrize("measure", ["pronouns", "chained", "triples"])
def test_the_product_has_plain_names_and_shapes(measure):
    assert list(map(str, style.places(budgets.python_files(budgets.PRODUCT), measure))) == []


def test_no_function_is_over_the_limits():
    assert budgets.large_functions(budgets.python_files(budgets.PRODUCT)) == []


# Documented parameters ------------------------------------------------------------------------------------------------

ENTRY = re.compile(r"(?:(?<=\n\n)|(?<=[.;]\n)|(?<=[.;] ))([a-z_]\w*(?:, [a-z_]\w*)*): ")


def documented(node):
    """The names with an entry in a docstring: at the beginning of a line or a sentence, outside of examples."""
    text = re.sub(r"^ *>>>(?:.+\n?)+", "", ast.get_docstring(node) or "", flags=re.MULTILINE)
    return {name for entry in ENTRY.findall(text) for name in entry.split(", ")}


def bound(node):
    """The parameters of a function; of a class everything that is bound or used in it."""
    if isinstance(node, ast.ClassDef):
        fields = {name.attr if isinstance(name, ast.Attribute) else name.id for name in ast.walk(node) if is_name(name)}
        return fields | {name for inner in ast.walk(node) for name in style.bound_names(inner)}
    return {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}


def is_name(node):
    return isinstance(node, ast.Name | ast.Attribute)


def unknown_parameters(tree):
    """Documented names that are no parameters, and parameters of other functions that they do not have."""
    documentable = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documentable)]
    return sorted((node.lineno, name) for node in nodes for name in documented(node) - bound(node))


def cross_references(tree):
    """``name`` of :func:`function` in a docstring, as function and name."""
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    results = [match for text in texts for match in re.findall(r"``(\w+)`` of :func:`(?:[\w.]*\.)?(\w+)`", text)]
    return [(function, name) for name, function in results]


def test_entries_of_docstrings_are_seen():
    tree = ast.parse(
        'def f(a, b):\n    """Do it. a: first.\n\n    c, b: wrong: because\n        so.\n    later: x."""\n'
        'class A:\n    """Is.\n\n    x: known.\n    y: not.\n    """\n    x: int = 1\n'
        'def g(a):\n    """Wait for the\n    answer: it comes.\n\n    >>> g(1)\n    b: 1\n    """\n'
    )
    assert unknown_parameters(tree) == [(1, "c"), (1, "later"), (7, "y")]
    assert cross_references(ast.parse('"""see ``given`` of :func:`a.make`"""')) == [("make", "given")]


def test_documented_parameters_are_those_of_the_functions():
    files = budgets.python_files(budgets.PRODUCT)
    trees = {str(path.relative_to(budgets.ROOT)): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    assert [(path, *entry) for path, tree in trees.items() for entry in unknown_parameters(tree)] == []
    functions = [node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    parameters = {(node.name, name) for node in functions for name in bound(node)}
    assert [pair for tree in trees.values() for pair in cross_references(tree) if pair not in parameters] == []


# Tests of errors ------------------------------------------------------------------------------------------------------

READ_BY_MODELS = {"CallError", "GatewayError"}
"""Errors whose wording is the observation of a model or the answer to a program."""
PROSE = re.compile(r"(?<![\w.'`/=:-])[a-z]{2,}(?![\w.'`/=-])")


def own_errors():
    """The names of the product's errors that have parts."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in budgets.python_files(budgets.PRODUCT)]
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names = {"GagpoError"}
    while more := {name for name, node in classes.items() if names & set(map(ast.unparse, node.bases))} - names:
        names |= more
    return names - READ_BY_MODELS


def matched_sentences(tree, errors):
    """The literals of ``match=`` with more than three words of prose, of ``errors``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args and node.keywords]
    raises = [node for node in calls if errors & set(re.findall(r"\w+", ast.unparse(node.args[0])))]
    patterns = [keyword.value for node in raises for keyword in node.keywords if keyword.arg == "match"]
    texts = ["".join(getattr(node, "value", "") for node in ast.walk(each) if is_text(node)) for each in patterns]
    return [text for text in texts if len(PROSE.findall(text)) > 3]


def is_text(node):
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_errors_are_asked_for_parts_and_not_for_sentences():
    wrong = "with pytest.raises({}, match=f'{{path}} is not a thing that can be read'): pass"
    assert len(matched_sentences(ast.parse(wrong.format("(KeyError, GagpoError)")), {"GagpoError"})) == 1
    assert matched_sentences(ast.parse(wrong.format("KeyError")), {"GagpoError"}) == []
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in (budgets.ROOT / "tests").rglob("test_*.py")}
    errors = own_errors()
    assert [(path.name, text) for path, tree in trees.items() for text in matched_sentences(tree, errors)] == []
