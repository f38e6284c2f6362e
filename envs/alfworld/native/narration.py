"""The texts of a game: grammar rules compiled, once per grammar, to functions of static facts and a state.

Queries are answered in exactly TextWorld's order, because things are listed in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gagpo.envs.alfworld.native.formulas import GameError, PddlDomain
from gagpo.envs.alfworld.native.grammar import (
    Call,
    Condition,
    Each,
    LiteralText,
    Placeholder,
    Production,
    Symbol,
    Value,
)
from gagpo.envs.alfworld.native.state import Row, State, StaticFacts

Env = tuple[str, ...]  # the objects that the placeholders in scope stand for
Scope = tuple[Placeholder, ...]
Teller = Callable[[Env, StaticFacts, State], str]
Answers = Callable[[Env, StaticFacts, State], list[Env]]


@dataclass(slots=True, eq=False)
class Signatures:
    """Type tuples in search order; compared by identity, which makes it a fast dictionary key."""

    order: tuple[tuple[str, ...], ...]


LIST_RULES = ("list_empty", "list_separator", "list_last_separator")
MAX_PARTS = 100_000  # parts of one text; the longest shipped one has 60
SAID = "@said"  # marks the text's copy of a fact on which text and planner may disagree


class Narration:
    """Compiles the rules of a grammar for a domain.

    search_order: returns the type tuples below a type tuple, in TextWorld's order.
    apart: predicates on which text and planner may disagree; the text's facts are marked with ``SAID``.
    lookups: (predicate, positions) of changing facts that compiled texts look up.
    mentioned: predicates that compiled texts depend on.
    queries: all queries of compiled texts, in order.
    """

    def __init__(
        self,
        domain: PddlDomain,
        rules: Mapping[str, tuple[Production, ...]],
        search_order: Callable[[tuple[str, ...]], tuple[tuple[str, ...], ...]],
        apart: frozenset[str],
    ):
        self.domain = domain
        self.rules = rules
        self._search_order = search_order
        self._signatures: dict[tuple[str, ...], Signatures] = {}
        self.apart = apart
        self.lookups: set[tuple[str, tuple[int, ...]]] = set()
        self.mentioned: set[str] = set()
        self.queries: dict[tuple[Condition, ...], None] = {}
        self._rules: dict[tuple[str, Scope], Compiled] = {}

    def compile(self, symbols: tuple[Symbol, ...], scope: Scope) -> Compiled:
        """Compile ``symbols`` for objects in the order of ``scope``; raises GameError."""
        return _joined([self._symbol(symbol, scope) for symbol in symbols])

    def _symbol(self, symbol: Symbol, scope: Scope) -> Compiled:
        if isinstance(symbol, LiteralText):
            return Compiled(symbol.literal)
        if isinstance(symbol, Call):
            return self._rule(symbol.rule, scope)
        if isinstance(symbol, Value):
            return self._value(symbol, scope)
        if isinstance(symbol, Each):
            return self._each(symbol, None, scope)
        return self._each(symbol.each, [self._rule(name, scope) for name in LIST_RULES], scope)

    def _rule(self, name: str, scope: Scope) -> Compiled:
        compiled = self._rules.get((name, scope))
        if compiled is None:
            alternatives: list[tuple[Query | None, Compiled]] = []
            for production in self.rules[name]:
                # Alternatives after one without a condition are never reached.
                query = self._query(production.condition, scope) if production.condition else None
                alternatives.append((query, self.compile(production.symbols, scope)))
                if query is None:
                    break
            compiled = self._rules[name, scope] = _choice(name, alternatives)
        return compiled

    def _value(self, symbol: Value, scope: Scope) -> Compiled:
        """An expression; its value for an object never changes, so it is computed once."""
        places = {name: at for at, (name, _) in enumerate(scope)}  # the last placeholder of a name counts
        unknown = next((name for name in symbol.names if name not in places), None)
        if symbol.fault or unknown is not None:
            raise GameError(symbol.fault or f"expression {symbol.source!r}: unknown name {unknown}")
        used = frozenset(scope[places[name]] for name in symbol.names)
        names, source = symbol.names, symbol.source

        def compute(static: StaticFacts, objects: Env) -> str:
            try:
                return str(symbol.compute({n: static.entities[o] for n, o in zip(names, objects, strict=True)}))
            except KeyError as error:
                raise GameError(f"the object {error} takes part in an action but in no fact") from None

        if len(names) == 1:
            at = places[names[0]]

            def tell_one(env: Env, static: StaticFacts, state: State) -> str:
                thing = env[at]
                cache = static.cache.setdefault(source, {})
                text = cache.get(thing)
                if text is None:
                    text = cache[thing] = compute(static, (thing,))
                return text

            return Compiled(tell_one, used=used)
        positions = [places[name] for name in names]
        return Compiled(lambda env, static, state: compute(static, tuple([env[i] for i in positions])), used=used)

    def _each(self, each: Each, joints: list[Compiled] | None, scope: Scope) -> Compiled:
        if each.query is None:
            return self._symbol(each.part, scope)
        query = self._query(each.query, scope)
        part = self._symbol(each.part, query.scope)
        answers, tell_part = query.answers, part.tell
        if joints is None:

            def tell_all(env: Env, static: StaticFacts, state: State) -> str:
                found = answers(env, static, state)
                static.spend(len(found))
                return "".join([tell_part(e, static, state) for e in found])

            return Compiled(tell_all, [part, query])
        empty, between, last = (joint.tell for joint in joints)

        def tell(env: Env, static: StaticFacts, state: State) -> str:
            answered: list[Any] = answers(env, static, state)
            static.spend(len(answered))
            found: list[str] = [tell_part(e, static, state) for e in answered]
            if len(found) > 1:
                head = between(env, static, state).join(found[:-1])
                return head + last(env, static, state) + found[-1]
            return found[0] if found else empty(env, static, state)

        return Compiled(tell, [part, query, *joints])

    # Queries ----------------------------------------------------------------------------------------------------------

    def _query(self, conditions: tuple[Condition, ...], scope: Scope) -> Query:
        self.queries[conditions] = None
        steps: list[Answers] = []
        used = frozenset(p for condition in conditions for p in condition.parameters if p in scope)
        inner = scope
        for condition in conditions:
            step, inner = self._condition(condition, inner)
            steps.append(step)
        changing = any(self._changes(condition.predicate) for condition in conditions)

        def answers(env: Env, static: StaticFacts, state: State) -> list[Env]:
            found = [env]
            for step in steps:
                found = [more for one in found for more in step(one, static, state)]
                static.spend(len(found))
            return found

        return Query(answers if len(steps) > 1 else steps[0], inner, used, changing, inner != scope)

    def _condition(self, condition: Condition, scope: Scope) -> tuple[Answers, Scope]:
        """Extend the objects in scope in all ways that make one condition true.

        A new placeholder never stands for an object that another one stands for.
        """
        name = condition.predicate
        self.mentioned.add(name)
        parameters = condition.parameters
        inner = (*scope, *dict.fromkeys(p for p in parameters if p not in scope))
        fresh = [i for i, p in enumerate(parameters) if p not in scope and p not in parameters[:i]]
        repeated = [
            (parameters.index(p), i) for i, p in enumerate(parameters) if p not in scope and p in parameters[:i]
        ]
        bound = tuple(i for i, p in enumerate(parameters) if p in scope)
        at = [scope.index(parameters[i]) for i in bound]
        types = tuple(kind for _, kind in parameters)
        if types not in self._signatures:
            self._signatures[types] = Signatures(self._search_order(types))
        signatures = self._signatures[types]
        rows = self._rows(name, bound, len(parameters), signatures)

        def extend(env: Env, static: StaticFacts, state: State) -> list[Env]:
            found = []
            for row in rows(tuple([env[i] for i in at]), static, state):
                more = env
                for i in fresh:
                    if row[i] in more:
                        break
                    more = (*more, row[i])
                else:
                    if not repeated or all(row[a] == row[b] for a, b in repeated):
                        found.append(more)
            return found

        if len(fresh) == 1 and not repeated:
            only = fresh[0]

            def extend_by_one(env: Env, static: StaticFacts, state: State) -> list[Env]:
                key = tuple([env[i] for i in at])
                return [(*env, row[only]) for row in rows(key, static, state) if row[only] not in env]

            return extend_by_one, inner
        return extend, inner

    def _rows(
        self, name: str, bound: tuple[int, ...], arity: int, signatures: Signatures
    ) -> Callable[[Row, StaticFacts, State], Iterable[Row]]:
        """Rows of a predicate with given objects at the ``bound`` positions, in TextWorld's order."""
        if self._changes(name):
            return self._changing(name + SAID if name in self.apart else name, bound, arity, signatures)
        if self.domain.predicates.get(name) != arity or name == "=":
            return lambda key, static, state: ()
        cache_key = object()

        def fixed(key: Row, static: StaticFacts, state: State) -> Iterable[Row]:
            cache = static.cache.setdefault(cache_key, {})
            rows = cache.get(key)
            if rows is None:
                rows = cache[key] = _ordered(static.lookup(name, bound, key), static, signatures)
            return rows

        return fixed

    def _changes(self, name: str) -> bool:
        return name in self.domain.fluents or self.denies(name)

    def denies(self, name: str) -> bool:
        """Whether ``name`` asks for facts that were made false: ``not_`` and a predicate that changes."""
        return name.startswith("not_") and name[4:] in self.domain.fluents and name not in self.domain.predicates

    def _changing(
        self, name: str, bound: tuple[int, ...], arity: int, signatures: Signatures
    ) -> Callable[[Row, StaticFacts, State], Iterable[Row]]:
        if len(bound) == arity:

            def check(key: Row, static: StaticFacts, state: State) -> Iterable[Row]:
                if (name, *key) not in state.facts:
                    return ()
                return _ordered((key,), static, signatures)

            return check
        self.lookups.add((name, bound))

        def look(key: Row, static: StaticFacts, state: State) -> Iterable[Row]:
            rows = state.slots.get((name, bound, key))
            return _ordered(rows, static, signatures) if rows else ()

        return look


@dataclass(slots=True, eq=False)
class Query:
    """A compiled query.

    answers: from the objects in scope to those of all answers.
    scope: the placeholders of an answer.
    used: placeholders that it depends on.
    changing: it asks for facts that change.
    open: it binds new placeholders.
    """

    answers: Answers
    scope: Scope
    used: frozenset[Placeholder]
    changing: bool
    open: bool


class Compiled:
    """A compiled text of ``size`` parts: a constant, or what ``tell`` returns. The rest is as in :class:`Query`."""

    __slots__ = ("changing", "constant", "open", "size", "tell", "used")

    def __init__(
        self, text: str | Teller, parts: Iterable[Compiled | Query] = (), used: frozenset[Placeholder] = frozenset()
    ):
        parts = list(parts)
        self.constant = text if isinstance(text, str) else None
        self.tell: Teller = (lambda env, static, state: text) if isinstance(text, str) else text
        self.used: frozenset[Placeholder] = used.union(*[part.used for part in parts])
        self.changing: bool = any(part.changing for part in parts)
        self.open: bool = any(part.open for part in parts)
        self.size: int = (
            1 + sum(part.size for part in parts if isinstance(part, Compiled)) + len(self.constant or "") // 64
        )
        if self.size > MAX_PARTS:
            raise GameError(f"grammar: a text has more than {MAX_PARTS:,} parts")


class _Ranks(dict[Row, tuple[int, ...]]):
    """Row -> positions of its types among ``signatures``: empty for the usual case, the first one only."""

    def __init__(self, types: Mapping[str, str], signatures: Signatures):
        self.types = types
        self.signatures = signatures

    def __missing__(self, row: Row) -> tuple[int, ...]:
        signature = tuple([self.types[name] for name in row])
        found = tuple(i for i, each in enumerate(self.signatures.order) if each == signature)
        self[row] = found = () if found == (0,) else found or (-1,)
        return found


def _ordered(rows: Iterable[Row], static: StaticFacts, signatures: Signatures) -> Iterable[Row]:
    """Sorted ``rows`` in order of rank, without those of no rank; a row with two ranks comes twice."""
    ranks = static.cache.get(signatures)
    if ranks is None:
        ranks = static.cache[signatures] = _Ranks(static.types, signatures)
    if not any(map(ranks.__getitem__, rows)):
        return rows
    placed = [(rank, row) for row in rows for rank in ranks[row] or (0,) if rank >= 0]
    return [row for _, row in sorted(placed)]


def _joined(parts: list[Compiled]) -> Compiled:
    """The concatenation of ``parts``."""
    merged: list[Compiled] = []
    for part in parts:
        if merged and part.constant is not None and merged[-1].constant is not None:
            merged[-1] = Compiled(merged[-1].constant + part.constant)
        elif part.constant != "":
            merged.append(part)
    if not merged:
        return Compiled("")
    if len(merged) == 1:
        return merged[0]
    pieces: list[Any] = [part.tell if part.constant is None else part.constant for part in merged]
    if len(merged) == 3 and merged[1].constant is None and merged[0].constant and merged[2].constant:
        one, tell, three = pieces
        return Compiled(lambda env, static, state: one + tell(env, static, state) + three, merged)
    return Compiled(
        lambda env, static, state: "".join(
            [piece if isinstance(piece, str) else piece(env, static, state) for piece in pieces]
        ),
        merged,
    )


def _choice(rule: str, alternatives: list[tuple[Query | None, Compiled]]) -> Compiled:
    """The text of the first alternative whose condition has an answer."""
    if alternatives[0][0] is None:
        return alternatives[0][1]
    tests = [(None if query is None else query.answers, compiled.tell) for query, compiled in alternatives]

    def tell(env: Env, static: StaticFacts, state: State) -> str:
        for answers, text in tests:
            if answers is None or answers(env, static, state):
                return text(env, static, state)
        raise GameError(f"grammar: no alternative of rule {rule} applies")

    parts: list[Compiled | Query] = [compiled for _, compiled in alternatives]
    return Compiled(tell, [*parts, *[query for query, _ in alternatives if query is not None]])
