"""Text grammars of games (``.twl2``): the command of each action, and the text that answers it.

A document holds actions (a command template and a feedback rule each) and JSON blocks of production rules. Rules and
templates are written in a small language::

    plain text   #rule#   {expression}   {expression | query}   [{expression | query}]
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from gagpo.envs.alfworld.native.expression import Expression, expression
from gagpo.envs.alfworld.native.formulas import GameError

Placeholder = tuple[str, str]  # name and type: ("r", "receptacle")


@dataclass(frozen=True, slots=True)
class Condition:
    """One conjunct of a query: ``inreceptacle(o:object, r:receptacle)``."""

    predicate: str
    parameters: tuple[Placeholder, ...]


@dataclass(frozen=True, slots=True)
class LiteralText:
    literal: str


@dataclass(frozen=True, slots=True)
class RuleCall:
    """``#rule#``"""

    rule: str


@dataclass(frozen=True, slots=True)
class Value:
    """An expression over ``names``; ``fault`` is the error of one that cannot be read."""

    source: str
    names: tuple[str, ...]
    compute: Expression
    fault: str = ""


@dataclass(frozen=True, slots=True)
class ForEach:
    """``{part | query}``: the part once for each answer to the query, or once without a query."""

    part: RuleCall | Value
    query: tuple[Condition, ...] | None


@dataclass(frozen=True, slots=True)
class Listing:
    """``[{part | query}]``: the same, joined by the rules list_separator and list_last_separator, or list_empty."""

    item: ForEach


Symbol = LiteralText | RuleCall | Value | ForEach | Listing


@dataclass(frozen=True, slots=True)
class Production:
    """One alternative of a rule; without a condition it always applies."""

    condition: tuple[Condition, ...] | None
    symbols: tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class ActionTemplates:
    """The command of an action and the text that answers it."""

    command: tuple[Symbol, ...]
    feedback: tuple[Symbol, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar document.

    templates: action name in lower case -> its templates.
    rules: name -> alternatives; the first that applies is used.
    """

    templates: dict[str, ActionTemplates]
    rules: dict[str, tuple[Production, ...]]


def read_grammar(text: str) -> Grammar:
    """Parse a grammar document; raises :class:`GameError` naming action, rule or line."""
    templates: dict[str, ActionTemplates] = {}
    rules: dict[str, object] = {}
    for name, fields, position in _document(text):
        # A block of rules stands alone or belongs to an action; later rules replace earlier ones of the same name.
        if name is None:
            rules.update(_json_block(fields["grammar"], text, position))
            continue
        if "template" not in fields or "feedback" not in fields:
            raise GameError(f"line {_line(text, position)}: action {name} needs a template and a feedback")
        try:
            templates[name.lower()] = ActionTemplates(symbols(fields["template"]), symbols(fields["feedback"]))
        except GameError as error:
            raise error.inside(f"action {name}") from None
        if "grammar" in fields:
            block = "\n".join(row for row in fields["grammar"].split("\n") if not row.lstrip().startswith("#"))
            rules.update(_json_block(block, text, position))
    return Grammar(templates, {name: _productions(name, rule) for name, rule in rules.items()})


def _productions(name: str, alternatives: object) -> tuple[Production, ...]:
    if not isinstance(alternatives, list):
        raise GameError(f"rule {name}: expected a list of alternatives, got {type(alternatives).__name__}")
    productions = []
    for number, alternative in enumerate(alternatives, 1):
        rule = f"rule {name}, alternative {number}"
        try:
            condition = alternative.get("condition")
            text = alternative["rhs"]
            productions.append(Production(query(condition) if condition else None, symbols(text)))
        except GameError as error:
            raise error.inside(rule) from None
        except (AttributeError, KeyError, TypeError):
            raise GameError(f"{rule}: expected an object with the texts 'rhs' and 'condition'") from None
    return tuple(productions)


# The document ---------------------------------------------------------------------------------------------------------

_GAP = re.compile(r"(?:\s+|#[^\n]*)*")
_NAME = re.compile(r"[\w/-]+")
_FIELD = re.compile(r"(template|feedback|pddl|grammar)\b")
_STRING = re.compile(r'"([^"]*)"')
_BLOCK = re.compile(r'"""(.*?)"""', re.DOTALL)


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _document(text: str) -> list[tuple[str | None, dict[str, str], int]]:
    """The document's parts in order: (action name or None for a grammar block, fields, position)."""
    tokens: list[tuple[str | None, dict[str, str], int]] = []
    position = _GAP.match(text, 0).end()  # type: ignore[union-attr]

    def expect(pattern: re.Pattern[str] | str, expected: str) -> re.Match[str]:
        nonlocal position
        match = re.compile(re.escape(pattern) if isinstance(pattern, str) else pattern).match(text, position)
        if match is None:
            remainder = text[position : position + 30].split("\n")[0] or "the end"
            raise GameError(f"line {_line(text, position)}: expected {expected}, found {remainder!r}")
        position = _GAP.match(text, match.end()).end()  # type: ignore[union-attr]
        return match

    def field() -> tuple[str, str]:
        key = expect(_FIELD, "template, feedback, pddl or grammar").group(1)
        expect("::", "'::'")
        block = key in ("pddl", "grammar")
        value = expect(_BLOCK if block else _STRING, 'text in """ """' if block else 'text in " "').group(1)
        expect(";", "';'")
        return key, value

    while position < len(text):
        start = position
        if text.startswith("grammar", position):
            tokens.append((None, dict([field()]), start))
            continue
        expect(re.compile(r"action\b"), "action or grammar")
        name = expect(_NAME, "the action's name").group()
        expect("{", "'{'")
        fields: dict[str, str] = {}
        while not text.startswith("}", position):
            key, value = field()
            if key in fields:
                raise GameError(f"line {_line(text, start)}: action {name} has two {key}s")
            fields[key] = value
        expect("}", "'}'")
        tokens.append((name, fields, start))
    return tokens


def _json_block(block: str, text: str, position: int) -> dict[str, object]:
    try:
        rules = json.loads(block)
    except (ValueError, RecursionError) as error:
        raise GameError(f"line {_line(text, position)}: the grammar block is not JSON: {error}") from None
    if not isinstance(rules, dict):
        raise GameError(f"line {_line(text, position)}: the grammar block is not a JSON object")
    return rules


# Templates ------------------------------------------------------------------------------------------------------------
# Quirks of TextWorld's generated parser are kept, since they show in the text: tabs before a symbol are dropped, as are
# blanks and // comments where a symbol starts a line, and reading stops silently at the first character that fits
# nothing (such as a stray bracket).

_LINE_START = re.compile(r"^(//.*|\s*)\n?", re.MULTILINE)
_TABS = re.compile(r"\t+")
_TAG = re.compile(r"[\w()/!<>\-\s,.]+")
_QUERY_TEXT = re.compile(r"[^;|{}\n\[\]#]+")
_STATEMENT = re.compile(r"[^|\[\]{}\n<>]+")
_LITERAL = re.compile(r'[^;|"<>\[\]#{}]*')
_BAR = re.compile(r"\s*\|\s*")


def symbols(text: str) -> tuple[Symbol, ...]:
    """Parse a template or the right-hand side of a rule."""
    parsed: list[Symbol] = []
    position = _skip(text, 0)
    while True:
        symbol, end = _symbol(text, _skip(text, position))
        if parsed and end == position:
            break
        parsed.append(symbol)
        position = end
    return tuple(symbol for symbol in parsed if symbol != LiteralText(""))


def _skip(text: str, position: int) -> int:
    before = -1
    while before != position:
        before = position
        while match := _LINE_START.match(text, position):
            position = match.end()
            if not match.group(1):
                break
        tabs = _TABS.match(text, position)
        if tabs:
            position = tabs.end()
    return position


def _symbol(text: str, start: int) -> tuple[Symbol, int]:
    match_end = _listing(text, start) or _for_each(text, start) or _call(text, start)
    if match_end is not None:
        return match_end
    if text.startswith('"', start):
        match = _LITERAL.match(text, start + 1)
        assert match is not None
        end = _skip(text, match.end())
        if text.startswith('"', end):
            return LiteralText(match.group()), end + 1
    match = _LITERAL.match(text, start)
    assert match is not None
    return LiteralText(match.group()), match.end()


def _listing(text: str, start: int) -> tuple[Symbol, int] | None:
    if not text.startswith("[", start):
        return None
    for_each = _for_each(text, _skip(text, start + 1))
    if for_each is None:
        return None
    end = _skip(text, for_each[1])
    if text.startswith("]", end):
        return Listing(for_each[0]), end + 1
    return None


def _for_each(text: str, start: int) -> tuple[ForEach, int] | None:
    if not text.startswith("{", start):
        return None
    position = _skip(text, start + 1)
    body: RuleCall | Value
    call = _call(text, position)
    statement = _STATEMENT.match(text, position)
    if call:
        body, position = call
    elif statement:
        body = _value(statement.group())
        position = statement.end()
    else:
        return None
    query_text = None
    bar = _BAR.match(text, position)
    if bar:
        match = _QUERY_TEXT.match(text, _skip(text, bar.end()))
        if match is not None:
            query_text = match.group()
            position = match.end()
    position = _skip(text, position)
    if not text.startswith("}", position):
        return None
    return ForEach(body, query(query_text) if query_text else None), position + 1


def _value(source: str) -> Value:
    """An expression, or one with a ``fault``: as in TextWorld, rules that are never called may hold anything."""
    try:
        return Value(source, *expression(source))
    except GameError as error:
        return Value(source, (), lambda variables: None, str(error))


def _call(text: str, start: int) -> tuple[RuleCall, int] | None:
    if not text.startswith("#", start):
        return None
    match = _TAG.match(text, _skip(text, start + 1))
    if match is None:
        return None
    end = _skip(text, match.end())
    if text.startswith("#", end):
        return RuleCall(match.group()), end + 1
    return None


# Queries and expressions ----------------------------------------------------------------------------------------------

_BLANK = re.compile(r"\s*")
_PREDICATE = re.compile(r"!?[\w/]+")
_PLACEHOLDER = re.compile(r"([\w']+)(?:\s*:\s*([\w/-]+))?")


def query(text: str) -> tuple[Condition, ...]:
    """Parse ``name(a:type, b:type) & name(...)``."""
    position = 0

    def expect(pattern: re.Pattern[str]) -> re.Match[str]:
        nonlocal position
        match = pattern.match(text, _BLANK.match(text, position).end())  # type: ignore[union-attr]
        if match is None:
            raise GameError(f"query {text[:80]!r}: cannot read {text[position : position + 30]!r}")
        position = match.end()
        return match

    conditions = []
    while True:
        name = expect(_PREDICATE).group()
        expect(re.compile(r"\("))
        parameters: list[Placeholder] = []
        if not re.compile(r"\s*\)").match(text, position):
            while True:
                placeholder = expect(_PLACEHOLDER)
                parameters.append((placeholder.group(1), placeholder.group(2) or placeholder.group(1).rstrip("'")))
                if not re.compile(r"\s*,").match(text, position):
                    break
                expect(re.compile(","))
        expect(re.compile(r"\)"))
        conditions.append(Condition(name, tuple(parameters)))
        if _BLANK.fullmatch(text, position):
            return tuple(conditions)
        expect(re.compile("&"))
