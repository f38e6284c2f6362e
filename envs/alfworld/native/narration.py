"""The texts of a game: grammar rules compiled, once per grammar, to functions of static facts and a state.

Queries are answered in exactly TextWorld's order, because things are listed in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gagpo.envs.alfworld.native.formulas import GameError, PddlDomain
from gagpo.envs.alfworld.native.grammar import (
    Condition,
    ForEach,
    LiteralText,
    Placeholder,
    Production,
    RuleCall,
    Symbol,
    Value,
)
from gagpo.envs.alfworld.native.state import Row, State, StaticFacts

Env = tuple[str, ...]  # the objects that the placeholders in scope stand for
Scope = tuple[Placeholder, ...]
TextFunction = Callable[[Env, StaticFacts, State], str]
Answers = Callable[[Env, StaticFacts, State], list[Env]]


@dataclass(slots=True, eq=False)
class Signatures:
    """Type tuples in search order; compared by identity, which makes it a fast dictionary key."""

    order: tuple[tuple[str, ...], ...]


LIST_RULES = ("list_empty", "list_separator", "list_last_separator")
MAX_PARTS = 100_000  # parts of one text; the longest shipped one has 60
TEXT_COPY = "@said"  # suffix of the text's copy of a fact on which text and planner may disagree; part of state keys


class Narration:
    """Compiles the rules of a grammar for a domain.

    search_order: returns the type tuples below a type tuple, in TextWorld's order.
    divergent: predicates on which text and planner may disagree; the text's facts are marked with ``TEXT_COPY``.
    lookups: (predicate, positions) of changing facts that compiled texts look up.
    mentioned: predicates that compiled texts depend on.
    queries: all queries of compiled texts, in order.
    """

    def __init__(
        self,
        domain: PddlDomain,
        rules: Mapping[str, tuple[Production, ...]],
        search_order: Callable[[tuple[str, ...]], tuple[tuple[str, ...], ...]],
        divergent: frozenset[str],
    ):
        self.domain = domain
        self.rules = rules
        self._search_order = search_order
        self._signatures: dict[tuple[str, ...], Signatures] = {}
        self.divergent = divergent
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
        if isinstance(symbol, RuleCall):
            return self._rule(symbol.rule, scope)
        if isinstance(symbol, Value):
            return self._value(symbol, scope)
        if isinstance(symbol, ForEach):
            return self._for_each(symbol, None, scope)
        return self._for_each(symbol.item, [self._rule(name, scope) for name in LIST_RULES], scope)

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
        indices = {name: at for at, (name, _) in enumerate(scope)}  # the last placeholder of a name counts
        unknown = next((name for name in symbol.names if name not in indices), None)
        if symbol.fault or unknown is not None:
            raise GameError(symbol.fault or f"expression {symbol.source!r}: unknown name {unknown}")
        placeholders = frozenset(scope[indices[name]] for name in symbol.names)
        names = symbol.names
        source = symbol.source

        def compute(static: StaticFacts, objects: Env) -> str:
            try:
                return str(symbol.compute({n: static.entities[o] for n, o in zip(names, objects, strict=True)}))
            except KeyError as error:
                raise GameError(f"the object {error} takes part in an action but in no fact") from None

        if len(names) == 1:
            at = indices[names[0]]

            def render_object(env: Env, static: StaticFacts, state: State) -> str:
                entity = env[at]
                cache = static.cache.setdefault(source, {})
                text = cache.get(entity)
                if text is None:
                    text = cache[entity] = compute(static, (entity,))
                return text

            return Compiled(render_object, placeholders=placeholders)
        positions = [indices[name] for name in names]
        return Compiled(
            lambda env, static, state: compute(static, tuple([env[i] for i in positions])), placeholders=placeholders
        )

    def _for_each(self, for_each: ForEach, list_texts: list[Compiled] | None, scope: Scope) -> Compiled:
        if for_each.query is None:
            return self._symbol(for_each.part, scope)
        query = self._query(for_each.query, scope)
        body = self._symbol(for_each.part, query.scope)
        answers = query.answers
        render_part = body.render
        if list_texts is None:

            def render_all(env: Env, static: StaticFacts, state: State) -> str:
                matches = answers(env, static, state)
                static.spend(len(matches))
                return "".join([render_part(match, static, state) for match in matches])

            return Compiled(render_all, [body, query])
        empty, between, last = (joint.render for joint in list_texts)

        def render(env: Env, static: StaticFacts, state: State) -> str:
            answered: list[Any] = answers(env, static, state)
            static.spend(len(answered))
            items: list[str] = [render_part(match, static, state) for match in answered]
            if len(items) > 1:
                head = between(env, static, state).join(items[:-1])
                return head + last(env, static, state) + items[-1]
            return items[0] if items else empty(env, static, state)

        return Compiled(render, [body, query, *list_texts])

    # Queries ----------------------------------------------------------------------------------------------------------

    def _query(self, conditions: tuple[Condition, ...], scope: Scope) -> Query:
        self.queries[conditions] = None
        steps: list[Answers] = []
        placeholders = frozenset(p for condition in conditions for p in condition.parameters if p in scope)
        inner = scope
        for condition in conditions:
            step, inner = self._condition(condition, inner)
            steps.append(step)
        changing = any(self._changes(condition.predicate) for condition in conditions)

        def answers(env: Env, static: StaticFacts, state: State) -> list[Env]:
            extensions = [env]
            for step in steps:
                extensions = [extended for objects in extensions for extended in step(objects, static, state)]
                static.spend(len(extensions))
            return extensions

        return Query(answers if len(steps) > 1 else steps[0], inner, placeholders, changing, inner != scope)

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
        bound_positions = tuple(i for i, p in enumerate(parameters) if p in scope)
        scope_indexes = [scope.index(parameters[i]) for i in bound_positions]
        types = tuple(type_name for _, type_name in parameters)
        if types not in self._signatures:
            self._signatures[types] = Signatures(self._search_order(types))
        signatures = self._signatures[types]
        rows = self._rows(name, bound_positions, len(parameters), signatures)

        def extend(env: Env, static: StaticFacts, state: State) -> list[Env]:
            extensions = []
            for row in rows(tuple([env[i] for i in scope_indexes]), static, state):
                extended = env
                for i in fresh:
                    if row[i] in extended:
                        break
                    extended = (*extended, row[i])
                else:
                    if not repeated or all(row[a] == row[b] for a, b in repeated):
                        extensions.append(extended)
            return extensions

        if len(fresh) == 1 and not repeated:
            position = fresh[0]

            def extend_by_one(env: Env, static: StaticFacts, state: State) -> list[Env]:
                key = tuple([env[i] for i in scope_indexes])
                return [(*env, row[position]) for row in rows(key, static, state) if row[position] not in env]

            return extend_by_one, inner
        return extend, inner

    def _rows(
        self, name: str, bound_positions: tuple[int, ...], arity: int, signatures: Signatures
    ) -> Callable[[Row, StaticFacts, State], Iterable[Row]]:
        """Rows of a predicate with given objects at ``bound_positions``, in TextWorld's order."""
        if self._changes(name):
            return self._changing(
                name + TEXT_COPY if name in self.divergent else name, bound_positions, arity, signatures
            )
        if self.domain.predicates.get(name) != arity or name == "=":
            return lambda key, static, state: ()
        cache_key = object()

        def fixed(key: Row, static: StaticFacts, state: State) -> Iterable[Row]:
            cache = static.cache.setdefault(cache_key, {})
            rows = cache.get(key)
            if rows is None:
                rows = cache[key] = _ordered(static.lookup(name, bound_positions, key), static, signatures)
            return rows

        return fixed

    def _changes(self, name: str) -> bool:
        return name in self.domain.fluents or self.queries_negation(name)

    def queries_negation(self, name: str) -> bool:
        """Whether ``name`` asks for facts that were made false: ``not_`` and a predicate that changes."""
        return name.startswith("not_") and name[4:] in self.domain.fluents and name not in self.domain.predicates

    def _changing(
        self, name: str, bound_positions: tuple[int, ...], arity: int, signatures: Signatures
    ) -> Callable[[Row, StaticFacts, State], Iterable[Row]]:
        if len(bound_positions) == arity:

            def check(key: Row, static: StaticFacts, state: State) -> Iterable[Row]:
                if (name, *key) not in state.facts:
                    return ()
                return _ordered((key,), static, signatures)

            return check
        self.lookups.add((name, bound_positions))

        def look(key: Row, static: StaticFacts, state: State) -> Iterable[Row]:
            rows = state.slots.get((name, bound_positions, key))
            return _ordered(rows, static, signatures) if rows else ()

        return look


@dataclass(slots=True, eq=False)
class Query:
    """A compiled query.

    answers: from the objects in scope to those of all answers.
    scope: the placeholders of an answer.
    placeholders: placeholders that it depends on.
    changing: it asks for facts that change.
    open: it binds new placeholders.
    """

    answers: Answers
    scope: Scope
    placeholders: frozenset[Placeholder]
    changing: bool
    open: bool


class Compiled:
    """A compiled text of ``size`` parts: a constant, or what ``render`` returns. The rest is as in :class:`Query`."""

    __slots__ = ("changing", "constant", "open", "placeholders", "render", "size")

    def __init__(
        self,
        text: str | TextFunction,
        parts: Iterable[Compiled | Query] = (),
        placeholders: frozenset[Placeholder] = frozenset(),
    ):
        parts = list(parts)
        self.constant = text if isinstance(text, str) else None
        self.render: TextFunction
        if isinstance(text, str):
            self.render = lambda env, static, state: text
        else:
            self.render = text
        self.placeholders: frozenset[Placeholder] = placeholders.union(*[symbol.placeholders for symbol in parts])
        self.changing: bool = any(symbol.changing for symbol in parts)
        self.open: bool = any(symbol.open for symbol in parts)
        self.size: int = (
            1 + sum(symbol.size for symbol in parts if isinstance(symbol, Compiled)) + len(self.constant or "") // 64
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
        ranks = tuple(i for i, types in enumerate(self.signatures.order) if types == signature)
        self[row] = ranks = () if ranks == (0,) else ranks or (-1,)
        return ranks


def _ordered(rows: Iterable[Row], static: StaticFacts, signatures: Signatures) -> Iterable[Row]:
    """Sorted ``rows`` in order of rank, without those of no rank; a row with two ranks comes twice.

    TextWorld looks up a query once for each tuple of subtypes. A tuple can be reached in two ways (``Signatures``), and
    then its rows are listed twice: the texts contain this repetition.
    """
    ranks = static.cache.get(signatures)
    if ranks is None:
        ranks = static.cache[signatures] = _Ranks(static.types, signatures)
    if not any(map(ranks.__getitem__, rows)):
        return rows
    ranked_rows = [(rank, row) for row in rows for rank in ranks[row] or (0,) if rank >= 0]
    return [row for _, row in sorted(ranked_rows)]


def _joined(parts: list[Compiled]) -> Compiled:
    """The concatenation of ``parts``."""
    merged: list[Compiled] = []
    for symbol in parts:
        if merged and symbol.constant is not None and merged[-1].constant is not None:
            merged[-1] = Compiled(merged[-1].constant + symbol.constant)
        elif symbol.constant != "":
            merged.append(symbol)
    if not merged:
        return Compiled("")
    if len(merged) == 1:
        return merged[0]
    renderers: list[Any] = [symbol.render if symbol.constant is None else symbol.constant for symbol in merged]
    if len(merged) == 3 and merged[1].constant is None and merged[0].constant and merged[2].constant:
        # "text OBJECT text" is the usual shape; one concatenation is faster than a join.
        before, render, after = renderers
        return Compiled(lambda env, static, state: before + render(env, static, state) + after, merged)
    return Compiled(
        lambda env, static, state: "".join(
            [piece if isinstance(piece, str) else piece(env, static, state) for piece in renderers]
        ),
        merged,
    )


def _choice(rule: str, alternatives: list[tuple[Query | None, Compiled]]) -> Compiled:
    """The text of the first alternative whose condition has an answer."""
    if alternatives[0][0] is None:
        return alternatives[0][1]
    tests = [(None if query is None else query.answers, compiled.render) for query, compiled in alternatives]

    def render(env: Env, static: StaticFacts, state: State) -> str:
        for answers, text in tests:
            if answers is None or answers(env, static, state):
                return text(env, static, state)
        raise GameError(f"grammar: no alternative of rule {rule} applies")

    options: list[Compiled | Query] = [compiled for _, compiled in alternatives]
    return Compiled(render, [*options, *[query for query, _ in alternatives if query is not None]])
