"""How the product's code reads: names, plain shapes, sizes of functions."""

import ast

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
    assert [len(list(count(tree))) for _, count in style.MEASURES.values()] == [0, 2, 1, 2, 1]


def test_comments_are_counted_without_directives():
    assert style.comment_lines('"""# no"""\nx = "# no"  # why\n# and why\ny = 1  # noqa: E501\n') == 2


@pytest.mark.parametrize("measure", ["pronouns", "chained", "triples"])
def test_the_product_has_plain_names_and_shapes(measure):
    assert list(map(str, style.places(budgets.python_files(budgets.PRODUCT), measure))) == []


def test_no_function_is_over_the_limits():
    assert budgets.large_functions(budgets.python_files(budgets.PRODUCT)) == []
