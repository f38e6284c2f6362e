"""A domain and its grammar, compiled once for all games that share them."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from gagpo.envs.alfworld.native.formulas import (
    Action,
    Atom,
    Case,
    Effect,
    GameError,
    Match,
    PddlDomain,
    Step,
    cases,
    plan,
)
from gagpo.envs.alfworld.native.grammar import (
    Condition,
    ForEach,
    Grammar,
    Listing,
    LiteralText,
    Production,
    RuleCall,
    Symbol,
    Value,
    read_grammar,
    symbols,
)
from gagpo.envs.alfworld.native.narration import LIST_RULES, Compiled, Narration
from gagpo.envs.alfworld.native.pddl import read_domain


@dataclass(frozen=True, slots=True)
class ConditionalEffect:
    """An effect with its condition as alternatives."""

    variables: tuple[tuple[str, str], ...]
    cases: tuple[Case, ...]
    literal: Atom

    @property
    def always(self) -> bool:
        return self.cases == (Case(),)


@dataclass(frozen=True, slots=True, eq=False)
class Schema:
    """An action of the domain with its effects and its templates."""

    action: Action
    cases: tuple[Case, ...]
    outcomes: tuple[ConditionalEffect, ...]
    command: Compiled
    feedback: Compiled


class ActionCase:
    """One case of an action, with its lookups in the order in which they are made.

    trigger: the atom that says where the agent is, or None.
    before: lookups after the trigger, up to the first one of changing facts (``guard``).
    after: lookups after the guard.
    after_fixed: those of ``after`` up to the next lookup of changing facts.
    static_after: ``after`` looks up no changing facts.
    before_need, before_forbid: changing facts that must be true, or false, known after ``before``.
    before_bans: static facts that must be false, known after ``before``.
    need: changing facts that must be true, without trigger and guard.
    has_restrictions: there are equalities or negated static facts.
    may_be_no_op: the action may change nothing, and the planner drops such actions.
    loose: variables of the trigger that only the effect removing the trigger depends on; places that differ in these
        alone share their operators.
    """

    __slots__ = (
        "after",
        "after_fixed",
        "before",
        "before_bans",
        "before_forbid",
        "before_need",
        "case",
        "fluent_negative",
        "fluent_positive",
        "guard",
        "has_restrictions",
        "loose",
        "may_be_no_op",
        "need",
        "schema",
        "static_after",
        "trigger",
        "types",
    )  # fmt: skip

    def __init__(self, schema: Schema, case: Case, trigger: Atom | None, fluents: frozenset[str]):
        self.schema = schema
        self.case = case
        self.trigger = trigger
        variables = (*schema.action.parameters, *case.variables)
        self.types = dict(variables)
        atoms = list(case.positive)
        if trigger is not None:
            atoms.remove(trigger)
        steps = plan(atoms, variables, self.types.keys() & set(trigger.args if trigger else ()), fluents)
        steps = tuple(s for s in steps if not (isinstance(s, Match) and s.fluent and not s.fresh))
        guards = [i for i, step in enumerate(steps) if isinstance(step, Match) and step.fluent]
        guard_index = guards[0] if guards else len(steps)
        self.before: tuple[Step, ...] = steps[:guard_index]
        guard = steps[guard_index] if guards else None
        self.guard = guard if isinstance(guard, Match) else None
        self.after: tuple[Step, ...] = steps[guard_index + 1 :]
        self.static_after = len(guards) <= 1
        self.after_fixed: tuple[Step, ...]
        if len(guards) > 1:
            self.after_fixed = steps[guard_index + 1 : guards[1]]
        else:
            self.after_fixed = self.after
        # Atoms over these names can be checked after ``before``, once for all rows that the guard will return.
        bound = set(trigger.args if trigger else ()) | {name for step in self.before for name in step.bound}
        bound |= {name for atom in (*case.positive, *case.negative) for name in atom.args if name not in self.types}
        self.fluent_positive = tuple(a for a in case.positive if a.predicate in fluents)
        self.fluent_negative = tuple(a for a in case.negative if a.predicate in fluents)
        self.before_need = tuple(a for a in self.fluent_positive if a != trigger and bound.issuperset(a.args))
        self.before_forbid = tuple(a for a in self.fluent_negative if bound.issuperset(a.args))
        self.before_bans = tuple(
            a.negation
            for a in case.negative
            if a.predicate != "=" and a.predicate not in fluents and bound.issuperset(a.args)
        )
        lookup_atoms = {trigger}
        if self.guard is not None:
            lookup_atoms.add(_atom(self.guard))
        self.need = tuple(a for a in self.fluent_positive if a not in lookup_atoms)
        self.has_restrictions = any(a.predicate == "=" for a in case.positive) or any(
            a.predicate not in fluents for a in case.negative
        )
        present = {atom.predicate for atom in case.positive}
        self.may_be_no_op = all(o.literal.negated or o.literal.predicate in present for o in schema.outcomes)
        self.loose = _loose(self)


def _atom(match: Match) -> Atom:
    """The atom of a lookup."""
    names: dict[int, str] = dict(zip(match.positions, match.keys, strict=True))
    names |= {position: name for position, name, _ in match.fresh}
    for first, second in match.repeated:
        names[second] = names[first]
    return Atom(match.predicate, tuple(names[i] for i in range(len(names))))


@dataclass(slots=True, eq=False)
class CaseTrie:
    """A trie of entries by lookup, so that entries which begin with the same lookups share them."""

    entries: list[ActionCase] = field(default_factory=list)
    steps: list[tuple[Step, CaseTrie]] = field(default_factory=list)

    def insert(self, entry: ActionCase) -> None:
        branch = self
        for step in entry.before:
            next_branch = next((child for lookup, child in branch.steps if lookup == step), None)
            if next_branch is None:
                next_branch = CaseTrie()
                branch.steps.append((step, next_branch))
            branch = next_branch
        branch.entries.append(entry)


@dataclass(slots=True, eq=False)
class Tree:
    """The entries of one trigger: ``shared`` and, again, ``separate`` hold those with loose variables."""

    trigger: Atom
    types: dict[str, str]
    root: CaseTrie = field(default_factory=CaseTrie)
    shared: list[ActionCase] = field(default_factory=list)
    separate: CaseTrie = field(default_factory=CaseTrie)


class Logic:
    """A compiled domain and grammar; immutable, shared by all games whose texts differ in the task alone.

    trigger: the changing predicate that most conditions ask for (where the agent is), or None.
    governing: predicates that preconditions ask for.
    divergent: predicates with conditional effects, on which text and planner may disagree.
    mentioned: predicates that texts depend on.
    negated_queries: predicates that texts ask for as ``not_...``: facts that were true once and are not.
    lookups: (predicate, positions) that changing facts are looked up by.
    queries: the queries of texts.
    """

    def __init__(self, domain: PddlDomain, grammar: Grammar):
        self.domain = domain
        self.grammar = grammar
        fluents = domain.fluents
        actions = [action for action in domain.actions.values() if action.effects]  # the planner drops the others
        for action in actions:
            if action.name not in grammar.templates:
                raise GameError(f"grammar: there is no action {action.name}, which the domain defines")
        outcomes = {action.name: tuple(_outcome(effect) for effect in action.effects) for action in actions}
        alternatives = {action.name: cases(action.precondition) for action in actions}
        self.divergent = frozenset(
            o.literal.predicate for action in actions for o in outcomes[action.name] if not o.always
        )
        self._children: dict[str, list[str]] = {name: [] for name in domain.types}
        for name, supertypes in sorted(domain.types.items()):
            for supertype in supertypes:
                self._children[supertype].append(name)
        _check_grammar(domain, grammar, [action.name for action in actions])
        narration = Narration(domain, grammar.rules, self.search_order, self.divergent)
        self.intro = narration.compile((RuleCall("intro"),), ())
        self.trigger = _commonest([case for action_cases in alternatives.values() for case in action_cases], fluents)
        self.everywhere = CaseTrie()
        self.trees: list[Tree] = []
        self.schemas: list[Schema] = []
        self.lookups = narration.lookups
        if self.trigger is not None:
            self.lookups.add((self.trigger, ()))
        for action in actions:
            templates = grammar.templates[action.name]
            scope = tuple((name.strip("?"), type_name) for name, type_name in action.parameters)
            try:
                command, feedback = (narration.compile(s, scope) for s in (templates.command, templates.feedback))
            except GameError as error:
                raise error.inside(f"grammar: action {action.name}") from None
            if command.changing:
                raise GameError(f"grammar: action {action.name}: the command depends on facts that change")
            schema = Schema(action, alternatives[action.name], outcomes[action.name], command, feedback)
            self.schemas.append(schema)
            for case in alternatives[action.name]:
                triggers = [atom for atom in case.positive if atom.predicate == self.trigger]
                self._insert(ActionCase(schema, case, triggers[0] if triggers else None, fluents))
            for outcome in schema.outcomes:
                for case in outcome.cases:
                    self.lookups |= lookups(plan(case.positive, (*outcome.variables, *case.variables), (), fluents))
        self.governing = frozenset(
            name for action_cases in alternatives.values() for case in action_cases for name in mentioned(case)
        )
        self.mentioned = frozenset(narration.mentioned)
        self.queries = tuple(narration.queries)
        self.negated_queries = frozenset(name[4:] for name in self.mentioned if narration.queries_negation(name))

    def _insert(self, entry: ActionCase) -> None:
        self.lookups |= lookups((*entry.before, *((entry.guard,) if entry.guard else ()), *entry.after))
        if entry.trigger is None:
            self.everywhere.insert(entry)
            return
        types = {name: entry.types[name] for name in entry.trigger.args if name in entry.types}
        tree = next((t for t in self.trees if t.trigger == entry.trigger and t.types == types), None)
        if tree is None:
            tree = Tree(entry.trigger, types)
            self.trees.append(tree)
        if entry.loose:
            tree.shared.append(entry)
            tree.separate.insert(entry)
        else:
            tree.root.insert(entry)

    def search_order(self, types: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """The type tuples below ``types`` in TextWorld's search order: breadth first, with its repetitions."""
        queued: set[tuple[str, ...]] = set()
        queue = deque(self._narrowed(types))
        ordered = [types]
        while queue:
            ordered.append(queue.popleft())
            if len(ordered) > 10_000:
                raise GameError("grammar: a query has more than 10,000 combinations of subtypes")
            for narrower in self._narrowed(ordered[-1]):
                if narrower not in queued:
                    queued.add(narrower)
                    queue.append(narrower)
        return tuple(ordered)

    def _narrowed(self, types: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        narrowed = list(types)
        for position, name in enumerate(types):
            for child in self._children[name]:
                yield (*narrowed[:position], child, *narrowed[position + 1 :])


def lookups(steps: tuple[Step, ...]) -> set[tuple[str, tuple[int, ...]]]:
    """(predicate, positions) of the lookups of changing facts."""
    return {
        (step.predicate, step.positions) for step in steps if isinstance(step, Match) and step.fluent and step.fresh
    }


def mentioned(case: Case) -> set[str]:
    """The predicates of a case, with those of its universal parts."""
    predicates = {atom.predicate for atom in (*case.positive, *case.negative)}
    for formula in case.universal:
        for inner in cases(formula.part):
            predicates |= mentioned(inner)
    return predicates


def _commonest(condition_cases: list[Case], fluents: frozenset[str]) -> str | None:
    counts = Counter(name for case in condition_cases for name in {atom.predicate for atom in case.positive} & fluents)
    return max(sorted(counts), key=counts.__getitem__, default=None)


def _loose(entry: ActionCase) -> frozenset[str]:
    """``ActionCase.loose``."""
    trigger = entry.trigger
    case = entry.case
    outcomes = entry.schema.outcomes
    command = entry.schema.command
    if trigger is None or entry.guard is not None or case.universal or command.open:
        return frozenset()
    if all(outcome.literal != trigger.negation for outcome in outcomes):
        return frozenset()
    needed_names = {name for atom in (*case.positive, *case.negative) if atom != trigger for name in atom.args}
    needed_names |= {f"?{name}" for name, _ in command.placeholders}
    for outcome in outcomes:
        if not outcome.always or outcome.variables:
            return frozenset()
        if outcome.literal != trigger.negation:
            needed_names |= set(outcome.literal.args)
    return frozenset(name for name in trigger.args if name in entry.types and name not in needed_names)


def _outcome(effect: Effect) -> ConditionalEffect:
    condition_cases = cases(effect.condition)
    if any(case.universal for case in condition_cases):
        raise GameError(f"'forall' in the condition of the effect {effect.literal} is not supported")
    return ConditionalEffect(effect.variables, condition_cases, effect.literal)


def _check_grammar(domain: PddlDomain, grammar: Grammar, actions: list[str]) -> None:
    """Raise GameError if a rule in use is missing, circular or unsafe, or asks about an unknown type."""
    rules = grammar.rules
    checked_rules: set[str] = set()
    path: list[str] = []

    def check_query(conditions: tuple[Condition, ...] | None) -> None:
        for condition in conditions or ():
            for _, type_name in condition.parameters:
                if type_name not in domain.types:
                    raise GameError(f"grammar: unknown type {type_name} in a query about {condition.predicate}")

    def check_rule(name: str) -> None:
        if name in path:
            raise GameError(f"grammar: circular rules: {' -> '.join([*path[path.index(name) :], name])}")
        if name in checked_rules:
            return
        if not rules.get(name):
            raise GameError(f"grammar: there is no rule {name}" + (f", which {path[-1]} calls" if path else ""))
        if len(path) > 100:
            raise GameError(f"grammar: rules nest too deeply: {' -> '.join(path[:5])} ...")
        path.append(name)
        for production in rules[name]:
            check_query(production.condition)
            check_symbols(production.symbols)
        path.pop()
        checked_rules.add(name)

    def check_symbols(rule_symbols: tuple[Symbol, ...]) -> None:
        for symbol in rule_symbols:
            if isinstance(symbol, Listing):
                for name in LIST_RULES:
                    check_rule(name)
                symbol = symbol.item
            if isinstance(symbol, ForEach):
                check_query(symbol.query)
                symbol = symbol.part
            if isinstance(symbol, RuleCall):
                check_rule(symbol.rule)
            if isinstance(symbol, Value) and symbol.fault:
                raise GameError(f"grammar: {f'rule {path[-1]}: ' if path else ''}{symbol.fault}")

    check_rule("intro")
    for name in actions:
        check_symbols(grammar.templates[name].command)
        check_symbols(grammar.templates[name].feedback)


# Cached reading -------------------------------------------------------------------------------------------------------

TASK = "\ue000"  # placeholder of the task in a shared grammar; a private use character, so it is in no text
_TASK_RULE = re.compile(r'("task"\s*:\s*\[\s*\{\s*"rhs"\s*:\s*)("(?:[^"\\\x00-\x1f]|\\[^\x00-\x1f])*")(?=\s*\}\s*\])')


def read_logic(domain_text: str, grammar_text: str) -> tuple[Logic, str]:
    """The compiled domain and grammar, shared by games that differ in the task alone, and the text for ``TASK``."""
    halves = _TASK_RULE.split(grammar_text)
    if len(halves) == 4 and TASK not in grammar_text:
        try:
            task = symbols(json.loads(halves[2]))
        except GameError as error:
            raise error.inside("grammar: rule task") from None
        except ValueError:
            return _logic(domain_text, grammar_text), ""  # raises with the place
        if all(isinstance(symbol, LiteralText) for symbol in task):
            logic = _logic(domain_text, f'{halves[0]}{halves[1]}"{TASK}"{halves[3]}')
            if logic.grammar.rules.get("task") == (Production(None, (LiteralText(TASK),)),):
                return logic, "".join(symbol.literal for symbol in task if isinstance(symbol, LiteralText))
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
