"""What a game says: grammar rules specialised to the objects an action is about.

Everything that cannot change is settled once. What is left is a plain string, or a function from the set of true facts
to a string that only looks up facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from envs.alfworld.grammar import Call, Condition, Each, Entity, Listing, Placeholder, Production, Symbol, Text, Value
from envs.alfworld.pddl import GameError
from envs.alfworld.world import Row, World

Facts = set[int]
Teller = Callable[[Facts], str]
Literals = tuple[int, ...]

MAX_PIECES = 200_000  # pieces of text and facts looked at for one template; the longest shipped one takes 2,000


class Numbering(Protocol):
    """Numbers of what can be true of a game's text."""

    def said(self, fact: Row) -> int:
        """The number of "the text's facts contain this"."""

    def denied(self, fact: Row) -> int:
        """The number of "the text's facts contain that this was undone"."""


class Choice:
    """The first alternative whose condition (any of several conjunctions) holds."""

    __slots__ = ("alternatives", "rule")

    def __init__(self, rule: str, alternatives: list[tuple[list[Literals] | None, list[Piece]]]):
        self.rule = rule
        self.alternatives = alternatives


class Items:
    """Pieces, each told while its facts hold; joined by separators or, without them, side by side."""

    __slots__ = ("entries", "separators")

    def __init__(self, entries: list[tuple[Literals, list[Piece]]], separators: list[list[Piece]] | None):
        self.entries = entries
        self.separators = separators  # when empty, between, before the last


Piece = str | Choice | Items


class Narrator:
    """Specialises the grammar of one world. entities: object -> what expressions can say of it."""

    def __init__(self, world: World, entities: Mapping[str, Entity], numbering: Numbering):
        self.world = world
        self.rules = world.logic.grammar.rules
        self.entities = entities
        self.numbering = numbering
        self._rows: dict[tuple[str, tuple[str, ...], tuple[int, ...]], dict[Row, list[Row]]] = {}
        self._pieces = 0
        self.touched: set[Placeholder] = set()
        self.met: set[str] = set()

    def tell(self, symbols: tuple[Symbol, ...], mapping: Mapping[Placeholder, str]) -> str | Teller:
        """What ``symbols`` say when placeholders stand for the objects of ``mapping``.

        Afterwards ``touched`` holds the placeholders of ``mapping`` whose objects the text depends on and ``met`` the
        objects found by queries, which the other placeholders must not stand for. Raises GameError.
        """
        self._pieces = 0
        self.touched = set()
        self.met = set()
        variables = {name: self._entity(value) for (name, _), value in mapping.items()}
        return _teller(self._derive(symbols, dict(mapping), variables))

    def _entity(self, name: str) -> Entity:
        if name not in self.entities:
            raise GameError(f"the object {name} takes part in an action but in no fact")
        return self.entities[name]

    def _spend(self, pieces: int) -> None:
        self._pieces += pieces
        if self._pieces > MAX_PIECES:
            raise GameError(f"grammar: a text takes more than {MAX_PIECES:,} pieces")

    def _derive(
        self, symbols: tuple[Symbol, ...], mapping: dict[Placeholder, str], variables: dict[str, Entity]
    ) -> list[Piece]:
        pieces: list[Piece] = []
        for symbol in symbols:
            self._spend(1)
            if isinstance(symbol, Text):
                pieces.append(symbol.literal)
            elif isinstance(symbol, Call):
                pieces += self._rule(symbol.rule, mapping, variables)
            elif isinstance(symbol, Value):
                pieces.append(self._value(symbol, mapping, variables))
            elif isinstance(symbol, Listing):
                separators = [
                    self._rule(name, mapping, variables)
                    for name in ("list_empty", "list_separator", "list_last_separator")
                ]
                pieces.append(Items(self._entries(symbol.each, mapping, variables), separators))
            else:
                pieces.append(Items(self._entries(symbol, mapping, variables), None))
        return pieces

    def _value(self, symbol: Value, mapping: dict[Placeholder, str], variables: dict[str, Entity]) -> str:
        self.touched |= {placeholder for placeholder in mapping if placeholder[0] in symbol.source}
        return str(symbol.compute(variables))

    def _entries(
        self, each: Each, mapping: dict[Placeholder, str], variables: dict[str, Entity]
    ) -> list[tuple[Literals, list[Piece]]]:
        if each.query is None:
            return [((), self._derive((each.part,), mapping, variables))]
        entries = []
        for answer, literals in self._answers(each.query, mapping):
            named = variables | {name: self._entity(value) for (name, _), value in answer.items()}
            entries.append((literals, self._derive((each.part,), answer, named)))
        return entries

    def _rule(self, name: str, mapping: dict[Placeholder, str], variables: dict[str, Entity]) -> list[Piece]:
        alternatives: list[tuple[list[Literals] | None, list[Piece]]] = []
        for production in self.rules[name]:
            when = self._when(production, mapping)
            if when == []:
                continue
            alternatives.append((when, self._derive(production.symbols, mapping, variables)))
            if when is None:
                break
        if alternatives and alternatives[0][0] is None:
            return alternatives[0][1]
        if not alternatives:
            raise GameError(f"grammar: no alternative of rule {name} can ever apply")
        return [Choice(name, alternatives)]

    def _when(self, production: Production, mapping: dict[Placeholder, str]) -> list[Literals] | None:
        """The conjunctions under which an alternative applies: None for always, empty for never."""
        if production.condition is None:
            return None
        found = {literals: None for _, literals in self._answers(production.condition, mapping)}
        return None if () in found else list(found)

    def _answers(
        self, conditions: tuple[Condition, ...], mapping: dict[Placeholder, str]
    ) -> list[tuple[dict[Placeholder, str], Literals]]:
        """Answers to a query that are or can become true, in the order TextWorld gives them, with what they hang on.

        Different placeholders stand for different objects, those bound before the query excepted.
        """
        found: list[tuple[dict[Placeholder, str], Literals]] = []
        self._search(conditions, 0, dict(mapping), (), found)
        self.touched |= {p for condition in conditions for p in condition.parameters if p in mapping}
        return found

    def _search(
        self,
        conditions: tuple[Condition, ...],
        depth: int,
        mapping: dict[Placeholder, str],
        literals: Literals,
        found: list[tuple[dict[Placeholder, str], Literals]],
    ) -> None:
        if depth == len(conditions):
            found.append((dict(mapping), tuple(dict.fromkeys(literals))))
            return
        condition = conditions[depth]
        number = self._numbering(condition.predicate)
        parameters = condition.parameters
        bound = tuple(i for i, placeholder in enumerate(parameters) if placeholder in mapping)
        key = tuple([mapping[parameters[i]] for i in bound])
        for signature in self.world.logic.signatures(tuple(kind for _, kind in parameters)):
            rows = self._sorted(condition.predicate, signature, bound).get(key, ())
            self._spend(len(rows))
            for row in rows:
                fresh: list[Placeholder] = []
                for placeholder, value in zip(parameters, row, strict=True):
                    known = mapping.get(placeholder)
                    if known is None:
                        if value in mapping.values():
                            self.touched |= {p for p, v in mapping.items() if v == value}
                            break
                        self.met.add(value)
                        mapping[placeholder] = value
                        fresh.append(placeholder)
                    elif known != value:
                        break
                else:
                    more = () if number is None else (number((condition.predicate.removeprefix("not_"), *row)),)
                    self._search(conditions, depth + 1, mapping, literals + more, found)
                for placeholder in fresh:
                    del mapping[placeholder]

    def _numbering(self, predicate: str) -> Callable[[Row], int] | None:
        """How facts of a query's predicate are numbered; None for those that never change."""
        if predicate in self.world.fluents:
            return self.numbering.said
        if self._denies(predicate):
            return self.numbering.denied
        return None

    def _denies(self, predicate: str) -> bool:
        return predicate not in self.world.logic.domain.predicates and (
            predicate.startswith("not_") and predicate[4:] in self.world.fluents
        )

    def _sorted(self, predicate: str, signature: tuple[str, ...], bound: tuple[int, ...]) -> dict[Row, list[Row]]:
        """Rows whose objects have exactly these types, sorted, by the objects at the bound positions."""
        index = self._rows.get((predicate, signature, bound))
        if index is None:
            index = self._rows[predicate, signature, bound] = {}
            source = predicate[4:] if self._denies(predicate) else predicate
            types = self.world.types
            if source in self.world.logic.domain.predicates and source != "=":
                for row in sorted(self.world.rows.get(source, ())):
                    if tuple([types[name] for name in row]) == signature:
                        index.setdefault(tuple([row[i] for i in bound]), []).append(row)
        return index


# Turning pieces into functions ----------------------------------------------------------------------------------------


def _teller(pieces: list[Piece]) -> str | Teller:
    parts: list[str | Teller] = []
    for piece in pieces:
        part = piece if isinstance(piece, str) else _choice(piece) if isinstance(piece, Choice) else _items(piece)
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            parts[-1] += part
        elif part != "":
            parts.append(part)
    if not parts:
        return ""
    if len(parts) == 1:
        return parts[0]
    if len(parts) == 2:
        one, two = parts
        if isinstance(one, str) and not isinstance(two, str):
            return lambda facts: one + two(facts)
    if len(parts) == 3:
        one, two, three = parts
        if isinstance(one, str) and not isinstance(two, str) and isinstance(three, str):
            return lambda facts: one + two(facts) + three
    return lambda facts: "".join([part if isinstance(part, str) else part(facts) for part in parts])


def _choice(choice: Choice) -> str | Teller:
    tests = [(when, _teller(pieces)) for when, pieces in choice.alternatives]
    first = tests[0][0]
    if len(tests) == 2 and first is not None and len(first) == len(first[0]) == 1 and tests[1][0] is None:
        literal = first[0][0]
        yes, no = _function(tests[0][1]), _function(tests[1][1])
        return lambda facts: yes(facts) if literal in facts else no(facts)
    functions = [
        (None if when is None else [frozenset(literals) for literals in when], _function(teller))
        for when, teller in tests
    ]

    def tell(facts: Facts) -> str:
        for when, function in functions:
            if when is None or any(literals <= facts for literals in when):
                return function(facts)
        raise GameError(f"grammar: no alternative of rule {choice.rule} applies")

    return tell


def _function(teller: str | Teller) -> Teller:
    if isinstance(teller, str):
        return lambda facts: teller
    return teller


def _items(items: Items) -> str | Teller:
    entries = [(literals, _teller(pieces)) for literals, pieces in items.entries]
    separators = None if items.separators is None else [_teller(pieces) for pieces in items.separators]
    fixed = all(isinstance(teller, str) for _, teller in entries) and (
        separators is None or all(isinstance(teller, str) for teller in separators)
    )
    if fixed and all(not literals for literals, _ in entries):
        texts = [teller for _, teller in entries if isinstance(teller, str)]
        return _join(texts, None if separators is None else [s for s in separators if isinstance(s, str)])
    if fixed and separators is not None and all(len(literals) == 1 for literals, _ in entries):
        single = [(literals[0], teller) for literals, teller in entries if isinstance(teller, str)]
        empty, between, last = (s for s in separators if isinstance(s, str))

        def tell_single(facts: Facts) -> str:
            texts = [text for literal, text in single if literal in facts]
            if len(texts) > 1:
                return between.join(texts[:-1]) + last + texts[-1]
            return texts[0] if texts else empty

        return tell_single
    functions = [(frozenset(literals), _function(teller)) for literals, teller in entries]
    joints = None if separators is None else [_function(teller) for teller in separators]

    def tell(facts: Facts) -> str:
        texts = [function(facts) for literals, function in functions if literals <= facts]
        return _join(texts, None if joints is None else [joint(facts) for joint in joints])

    return tell


def _join(texts: list[str], separators: list[str] | None) -> str:
    if separators is None:
        return "".join(texts)
    empty, between, last = separators
    if len(texts) > 1:
        return between.join(texts[:-1]) + last + texts[-1]
    return texts[0] if texts else empty
