"""Text grammars are read as TextWorld's parser reads them, and never evaluated."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gagpo.envs.alfworld.native.expression import Entity, expression
from gagpo.envs.alfworld.native.formulas import GameError
from gagpo.envs.alfworld.native.grammar import (
    Condition,
    ForEach,
    Listing,
    LiteralText,
    RuleCall,
    Value,
    query,
    read_grammar,
    symbols,
)

CUP = Entity("cup_bar_1", "object", "cup 1")


def evaluate(source: str) -> object:
    return expression(source)[1]({"o": CUP})


def test_expressions_compute_names_and_joined_text():
    assert evaluate("o.indefinite + ' ' + o.name") == "a cup 1"
    assert evaluate("o.noun or o.id") == "cup_bar_1"
    assert evaluate("'x' if o.type == 'object' and not o.adj else 'y'") == "x"
    assert str(evaluate("o")) == "cup 1"
    assert expression("o.name + r.name")[0] == ("o", "r")


@pytest.mark.parametrize(
    "source",
    [
        "__import__('os').system('true')",
        "o.__class__",
        "o.name.upper()",
        "[x for x in o.name]",
        "lambda: 1",
        "o.name * 999999999",
        "9**9**9",
        "f'{o.name}'",
        "(o := 1)",
        "o.name; o.id",
        "(" * 300,
        "not " * 100 + "(" * 100,
        "o.name +" + " " * 600,
        "",
        "\x00",
    ],
)
def test_anything_but_names_and_text_is_refused(source):
    with pytest.raises(GameError):
        evaluate(source)


def test_a_template_is_read_into_its_parts():
    text, each, middle, listing, call = symbols("take {o} from [{r.name | in(r:receptacle, o)}]#end (x)#")
    assert text == LiteralText("take ") and middle == LiteralText(" from ") and call == RuleCall("end (x)")
    assert isinstance(each, ForEach) and isinstance(each.part, Value) and each.query is None
    assert isinstance(listing, Listing)
    assert listing.item.query == (Condition("in", (("r", "receptacle"), ("o", "o"))),)


def test_blanks_at_a_line_start_and_tabs_are_dropped_and_reading_stops_at_a_stray_mark():
    assert symbols("\n  Help\tme") == (LiteralText("Help\tme"),)
    assert symbols("// all of this is a comment") == ()
    assert symbols("put it; then stop") == (LiteralText("put it"),)
    assert symbols("a] b") == (LiteralText("a"),)
    assert symbols('"quoted" text') == (LiteralText("quoted"), LiteralText(" text"))
    assert symbols('"quoted {text"') == ()


def test_queries_name_predicates_and_placeholders():
    assert query(" in(o:object, r' : receptacle)&empty() ") == (
        Condition("in", (("o", "object"), ("r'", "receptacle"))),
        Condition("empty", ()),
    )
    for wrong in ("in(", "in(o) &", "in(o) in(o)", "in(o:)", "(o)", "in(o,)"):
        with pytest.raises(GameError):
            query(wrong)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ('action go { template :: "go"; }', "template and a feedback"),
        ('action go { template :: "a"; template :: "b"; feedback :: "c"; }', "two templates"),
        ('grammar :: """{"a": [}""";', "line 1: the grammar block is not JSON"),
        ("\n\nverb go {}", "line 3: expected action or grammar"),
        ('action go { template :: "go"', "expected"),
        ('grammar :: """' + "[" * 100_000 + '""";', "grammar block"),
        ('grammar :: """{"a": [{"rhs": 3}]}""";', "rule a, alternative 1"),
        ('grammar :: """{"a": [{"rhs": "", "condition": "in("}]}""";', "rule a, alternative 1: query"),
    ],
)
def test_a_broken_document_is_refused_with_its_place(document, message):
    with pytest.raises(GameError, match=message.replace("(", r"\(").replace("[", r"\[")):
        read_grammar(document)


# Against the parser that TextWorld uses -------------------------------------------------------------------------------

MARKS = st.sampled_from([*'abo.r |{}[]#"\t\n ;<>()/:,&!-', "{o.name}", "[{o.name | in(o:object)}]", "#x#", "//", "\n "])


def reference_symbols(text: str) -> list:
    from textworld.envs.pddl import textgen

    return [plain(symbol) for symbol in textgen._parse_and_convert(text, rule_name="symbols")]


def plain(symbol: object) -> object:
    """One of TextWorld's symbols, or of ours, as tuples."""
    if isinstance(symbol, LiteralText):
        return symbol.literal
    if isinstance(symbol, RuleCall):
        return ("call", symbol.rule)
    if isinstance(symbol, Value):
        return ("value", symbol.source)
    if isinstance(symbol, ForEach):
        return ("each", plain(symbol.part))
    if isinstance(symbol, Listing):
        return ("list", plain(symbol.item))
    type_name = type(symbol).__name__
    if type_name == "TerminalSymbol":
        return symbol.symbol  # type: ignore[attr-defined]
    if type_name == "NonterminalSymbol":
        return ("call", symbol.symbol)  # type: ignore[attr-defined]
    if type_name == "EvalSymbol":
        return ("value", symbol.expression)  # type: ignore[attr-defined]
    if type_name == "ConditionalSymbol":
        return ("each", plain(symbol.expression))  # type: ignore[attr-defined]
    return ("list", plain(symbol.symbol))  # type: ignore[attr-defined]


@pytest.mark.textworld
@settings(max_examples=300, deadline=None)
@given(st.lists(MARKS, max_size=14).map("".join))
def test_templates_are_read_as_textworld_reads_them(text):
    pytest.importorskip("textworld")
    expected = [symbol for symbol in reference_symbols(text) if symbol != ""]
    try:
        results = [plain(symbol) for symbol in symbols(text)]
    except GameError:  # a query that TextWorld would refuse when it is asked
        return
    assert results == expected
