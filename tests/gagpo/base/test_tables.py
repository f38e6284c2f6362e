"""Tables in three forms: they fit the terminal, and no cell breaks them."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from gagpo.base import tables
from gagpo.base.tables import WIDTH, Table, cut, facts, text_width

MIXED = Table(["name", "note", "count"], [["one", "a | b", "5"], ["seventeen", "c", "100"]], words=(0, 1), total=True)


def test_docstring_examples_are_true():
    outcome = doctest.testmod(tables)
    assert outcome.attempted > 1 and outcome.failed == 0


def test_words_stand_to_the_left_and_numbers_to_the_right():
    assert MIXED.lines() == [
        "name       note   count",
        "-----------------------",
        "one        a | b      5",
        "seventeen  c        100",
    ]


def test_names_that_begin_alike_stay_apart_when_they_are_cut():
    """A method and its averaged weights are rows of one study."""
    table = Table(["", "after %"], [["GAGPO, falling rate, one epoch", "1"], ["GAGPO, falling rate, averaged", "2"]])
    first, second = (line.split("  ")[0] for line in table.lines(30)[2:])
    assert first != second and first.startswith("GAGPO") and second.endswith("averaged")


def test_paths_that_differ_in_the_middle_stay_apart_when_they_are_cut():
    paths = [f"results/{name}/evaluations/after-valid_unseen" for name in ("gagpo-seed1", "grpo-seed1", "loo-seed1")]
    for highest in (8, 12, 20, 30):
        output = cut(paths, highest)
        assert len(set(output)) == 3 and all(len(name) <= highest for name in output)


def test_latex_has_a_caption_and_minus_signs():
    table = Table(["", "points"], [["a-1 -2", "-3.3 [-5.0, +1.2]"], ["b", "-"], ["c", "1.2e-05"]])
    begin, centred, caption, *_, end = table.latex("50 % of x_1")
    assert (begin, centred, end) == (r"\begin{table}", r"\centering", r"\end{table}")
    assert caption == r"\caption{50 \% of x\_1}"
    rows = [line for line in table.latex() if line.endswith(r"\\")][1:]
    assert rows == [r"a-1 -2 & $-$3.3 [$-$5.0, +1.2] \\", r"b & - \\", r"c & 1.2e-05 \\"]


def test_a_bar_or_a_line_break_in_a_cell_stays_in_it():
    assert MIXED.markdown()[:3] == ["| name | note | count |", "|---|---|---|", "| one | a \\| b | 5 |"]
    assert Table(["a"], [["b\nc"]]).markdown()[-1] == "| b c |"


def test_latex_escapes_what_it_would_obey():
    latex = Table(["", "after %"], [["a_b & c\\", "72.2 ± 5.2"]]).latex()
    assert latex == [
        r"\begin{tabular}{lr}",
        r"\toprule",
        r" & after \% \\",
        r"\midrule",
        r"a\_b \& c\textbackslash{} & 72.2 $\pm$ 5.2 \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_rich_shows_cells_as_they_are_with_a_line_above_the_sum():
    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(Table(["k", "v"], [["[red]", "1"], ["all", "1"]], title="t", total=True, styles={"all": "bold"}))
    text = console.export_text()
    assert "[red]" in text and "├" in text and text.split()[0] == "t"


cells = st.lists(st.text(max_size=70), min_size=3, max_size=3)


@given(cells, st.lists(cells, max_size=3), st.integers(30, 120))
def test_no_line_is_wider_than_asked_whatever_the_cells_hold(header, rows, width):
    lines = Table(header, rows, words=(0, 2)).lines(width) + facts([("name", header[1])], width)
    assert all(len(line) <= width and line.isascii() and (line.isprintable() or not line) for line in lines)


@pytest.mark.parametrize(("columns", "width"), [("45", 45), ("200", WIDTH), ("3", 30)])
def test_a_narrow_terminal_is_heeded(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    assert text_width() == width and text_width(most=200) == max(30, int(columns))


def test_a_wide_table_is_split_into_tables_that_fit():
    """Each part has the first columns; a column too wide for any table has a part of its own."""
    table = Table(["run", "k", "a", "b", "c"], [["first", "1", "x" * 12, "y" * 12, "z" * 12]])
    assert [list(segment.header) for segment in table.split(60, keys=2)] == [["run", "k", "a", "b", "c"]]
    assert [list(segment.header) for segment in table.split(40, keys=2)] == [["run", "k", "a", "b"], ["run", "k", "c"]]
    assert [list(segment.header) for segment in table.split(26, keys=2)] == [["run", "k", name] for name in "abc"]
    assert [list(segment.header) for segment in table.split(30)] == [["run", "k", "a"], ["run", "b"], ["run", "c"]]
    assert [list(segment.header) for segment in table.split(10, keys=2)] == [["run", "k", name] for name in "abc"]
    assert Table(["run", "k"], [["first", "1"]]).split(60, keys=2) == []
