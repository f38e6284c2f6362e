"""A domain and its grammar brought into the form that grounding works on, once for all games that share them.

Preconditions become alternatives (:class:`Case`) of positive and negative atoms; joins over them are planned here.
"""

from __future__ import annotations

import functools
import json
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from envs.alfworld.grammar import (
    Call,
    Condition,
    Each,
    Grammar,
    Listing,
    Production,
    Symbol,
    Text,
    Value,
    Wording,
    read_grammar,
    symbols,
)
from envs.alfworld.pddl import Action, Atom, Domain, Effect, Formula, GameError, Quantified, read_domain

MAX_CASES = 256  # alternatives of one condition; the shipped domain needs 2
LIST_RULES = ("list_empty", "list_separator", "list_last_separator")


@dataclass(frozen=True, slots=True)
class Case:
    """One alternative of a condition: all of its atoms, for some objects in place of ``variables``.

    universal: parts with "for all", kept for grounding to expand.
    """

    variables: tuple[tuple[str, str], ...] = ()
    positive: tuple[Atom, ...] = ()
    negative: tuple[Atom, ...] = ()
    universal: tuple[Quantified, ...] = ()

    def joined(self, other: Case) -> Case:
        return Case(
            self.variables + other.variables,
            self.positive + other.positive,
            self.negative + other.negative,
            self.universal + other.universal,
        )


def cases(formula: Formula) -> tuple[Case, ...]:
    """The disjunctive normal form of ``formula``, existential quantifiers pulled to the front."""
    if isinstance(formula, Atom):
        return (Case(negative=(formula,)) if formula.negated else Case(positive=(formula,)),)
    if isinstance(formula, Quantified):
        if formula.universal:
            return (Case(universal=(formula,)),)
        return tuple(Case(formula.variables).joined(case) for case in cases(formula.part))
    if not formula.conjunctive:
        return _few([case for part in formula.parts for case in cases(part)])
    product = [Case()]
    for part in formula.parts:
        product = list(_few([left.joined(right) for right in cases(part) for left in product]))
    return tuple(product)


def _few(found: list[Case]) -> tuple[Case, ...]:
    if len(found) > MAX_CASES:
        raise GameError(f"a condition has more than {MAX_CASES} alternatives")
    return tuple(found)


# Joins ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """Look up the rows of ``predicate`` whose ``positions`` hold the values of ``keys``; bind ``fresh`` from the row.

    keys: variables or objects. fresh: (position, variable, type or "" where it need not be checked).
    repeated: pairs of positions that must be equal because the atom names a fresh variable twice.
    """

    predicate: str
    positions: tuple[int, ...]
    keys: tuple[str, ...]
    fresh: tuple[tuple[int, str, str], ...]
    repeated: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Pick:
    """Try every object of a type."""

    variable: str
    type: str


Step = Match | Pick


def plan(
    atoms: Iterable[Atom], variables: Iterable[tuple[str, str]], bound: Iterable[str], fluents: frozenset[str]
) -> tuple[Step, ...]:
    """Order the positive ``atoms`` into lookups that bind ``variables``, given that ``bound`` have values."""
    types = dict(variables)
    known = set(bound)
    left = [atom for atom in atoms if atom.predicate != "="]
    steps: list[Step] = []

    def unknown(atom: Atom) -> int:
        return len({name for name in atom.args if name in types and name not in known})

    while left:
        atom = min(left, key=lambda a: (unknown(a), a.predicate in fluents))
        left.remove(atom)
        places: dict[str, int] = {}
        repeated = []
        for position, name in enumerate(atom.args):
            if name in types and name not in known:
                if name in places:
                    repeated.append((places[name], position))
                else:
                    places[name] = position
        positions = tuple(i for i, name in enumerate(atom.args) if name not in places)
        fresh = tuple((position, name, types[name]) for name, position in places.items())
        keys = tuple(atom.args[i] for i in positions)
        steps.append(Match(atom.predicate, positions, keys, fresh, tuple(repeated)))
        known |= set(places)
    steps += [Pick(name, types[name]) for name in types if name not in known]
    return tuple(steps)


# Schemas --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """An effect with its condition as alternatives; ``always`` when there is none."""

    variables: tuple[tuple[str, str], ...]
    cases: tuple[Case, ...]
    literal: Atom

    @property
    def always(self) -> bool:
        return self.cases == (Case(),)


@dataclass(frozen=True, slots=True)
class Schema:
    """An action of the domain with its wording."""

    action: Action
    cases: tuple[Case, ...]
    outcomes: tuple[Outcome, ...]
    wording: Wording


class Logic:
    """What a (domain, grammar) pair means; immutable, shared by all games with the same texts but for the task."""

    def __init__(self, domain: Domain, grammar: Grammar):
        self.domain = domain
        self.grammar = grammar
        self.schemas: list[Schema] = []
        for action in domain.actions.values():
            if not action.effects:
                continue  # the planner knows no action that does nothing
            if action.name not in grammar.wordings:
                raise GameError(f"grammar: there is no action {action.name}, which the domain defines")
            outcomes = tuple(_outcome(effect) for effect in action.effects)
            self.schemas.append(Schema(action, cases(action.precondition), outcomes, grammar.wordings[action.name]))
        self.conditional = frozenset(
            outcome.literal.predicate for schema in self.schemas for outcome in schema.outcomes if not outcome.always
        )
        self.told = self._check_grammar()
        self._subtypes: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {}
        children: dict[str, list[str]] = {name: [] for name in domain.types}
        for name, supertypes in domain.types.items():
            for supertype in supertypes:
                children[supertype].append(name)
        self._children = {name: sorted(below) for name, below in children.items()}

    @functools.cached_property
    def trigger(self) -> str | None:
        """The fluent that most conditions ask for (where the agent is): grounding is organised around its facts."""
        counts: dict[str, int] = {}
        for schema in self.schemas:
            for case in schema.cases:
                for predicate in {atom.predicate for atom in case.positive} & self.domain.fluents:
                    counts[predicate] = counts.get(predicate, 0) + 1
        return max(sorted(counts), key=lambda name: counts[name]) if counts else None

    def signatures(self, types: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """The type tuples below ``types`` in the order TextWorld searches them, which is the order things are listed in.

        It is breadth first with the repetitions of the original: what can be reached in two ways may be listed twice.
        """
        if types not in self._subtypes:
            unknown = next((name for name in types if name not in self._children), None)
            if unknown is not None:
                raise GameError(f"grammar: unknown type {unknown}")
            seen: set[tuple[str, ...]] = set()
            queue = deque(self._narrowed(types))
            found = [types]
            while queue:
                found.append(queue.popleft())
                if len(found) > 10_000:
                    raise GameError("too many subtypes")
                for narrower in self._narrowed(found[-1]):
                    if narrower not in seen:
                        seen.add(narrower)
                        queue.append(narrower)
            self._subtypes[types] = tuple(found)
        return self._subtypes[types]

    def _narrowed(self, types: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for position, name in enumerate(types):
            for child in self._children[name]:
                yield (*types[:position], child, *types[position + 1 :])

    def _check_grammar(self) -> frozenset[str]:
        """Predicates that what is said depends on; raises GameError for rules that are missing, circular or unsafe."""
        rules = self.grammar.rules
        told: set[str] = set()
        done: set[str] = set()
        path: list[str] = []

        def ask(conditions: tuple[Condition, ...] | None) -> None:
            for condition in conditions or ():
                told.add(condition.predicate)
                self.signatures_of(condition)

        def rule(name: str) -> None:
            if name in path:
                raise GameError(f"grammar: circular rules: {' -> '.join([*path[path.index(name) :], name])}")
            if name in done:
                return
            if name not in rules:
                raise GameError(f"grammar: there is no rule {name}" + (f", which {path[-1]} calls" if path else ""))
            if len(path) > 100:
                raise GameError(f"grammar: rules nest too deeply: {' -> '.join(path[:5])} ...")
            path.append(name)
            for production in rules[name]:
                ask(production.condition)
                walk(production.symbols)
            path.pop()
            done.add(name)

        def walk(found: tuple[Symbol, ...]) -> None:
            for symbol in found:
                if isinstance(symbol, Listing):
                    for name in LIST_RULES:
                        rule(name)
                    symbol = symbol.each
                if isinstance(symbol, Each):
                    ask(symbol.query)
                    symbol = symbol.part
                if isinstance(symbol, Call):
                    rule(symbol.rule)
                if isinstance(symbol, Value) and symbol.fault:
                    raise GameError(f"grammar: {f'rule {path[-1]}: ' if path else ''}{symbol.fault}")

        rule("intro")
        for schema in self.schemas:
            walk(schema.wording.command)
            walk(schema.wording.feedback)
        return frozenset(told)

    def signatures_of(self, condition: Condition) -> None:
        """Raise GameError where a query names a type the domain does not have."""
        for _, kind in condition.parameters:
            if kind not in self.domain.types:
                raise GameError(f"grammar: unknown type {kind} in a query about {condition.predicate}")


def _outcome(effect: Effect) -> Outcome:
    found = cases(effect.condition)
    if any(case.universal for case in found):
        raise GameError(f"'forall' in the condition of the effect {effect.literal} is not supported")
    return Outcome(effect.variables, found, effect.literal)


# Shared reading -------------------------------------------------------------------------------------------------------

TASK = "\ue000"  # stands for the task in a grammar that games share; from a private use area, so in no text
_TASK_RULE = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*)("(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*")(?=\s*\}\s*\])')


def read_logic(domain_text: str, grammar_text: str) -> tuple[Logic, str]:
    """The logic of a domain and a grammar, and the text to put for ``TASK``; games that differ by task share the logic."""
    halves = _TASK_RULE.split(grammar_text)
    if len(halves) == 4 and TASK not in grammar_text:
        try:
            task = symbols(json.loads(halves[2]))
        except GameError as error:
            raise error.inside("grammar: rule task") from None
        except ValueError:
            return _logic(domain_text, grammar_text), ""  # which says what is wrong
        if all(isinstance(symbol, Text) for symbol in task):
            logic = _logic(domain_text, f'{halves[0]}{halves[1]}"{TASK}"{halves[3]}')
            if logic.grammar.rules.get("task") == (Production(None, (Text(TASK),)),):
                return logic, "".join(symbol.literal for symbol in task if isinstance(symbol, Text))
    return _logic(domain_text, grammar_text), ""


@functools.lru_cache(maxsize=32)
def _logic(domain_text: str, grammar_text: str) -> Logic:
    try:
        domain = _domain(domain_text)
    except GameError as error:
        raise error.inside("pddl_domain") from None
    try:
        grammar = read_grammar(grammar_text)
    except GameError as error:
        raise error.inside("grammar") from None
    return Logic(domain, grammar)


_domain = functools.lru_cache(maxsize=32)(read_domain)
