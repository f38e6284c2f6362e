"""The facts of one problem: which are fixed, which can ever come about, and lookups over both."""

from __future__ import annotations

from collections.abc import Iterator

from envs.alfworld.logic import Case, Logic, Match, Step, plan
from envs.alfworld.pddl import Atom, GameError, Problem

Row = tuple[str, ...]
Binding = dict[str, str]

MAX_STEPS = 3_000_000  # lookups while grounding one game; a kitchen takes some 20,000
_TOO_LARGE = f"grounding takes more than {MAX_STEPS:,} steps: the game is too large"


class World:
    """Objects, rows per predicate and indexes on them.

    rows: predicate -> rows, in no particular order; for a fluent those that can ever be true if nothing is ever undone
    (the planner's relaxed reachability, which also decides what it calls a fact).
    initial: facts true at the start, as (predicate, arg, ...).
    """

    def __init__(self, logic: Logic, problem: Problem):
        self.logic = logic
        self.types = problem.objects
        self.fluents = logic.domain.fluents
        self.initial = set(problem.facts)
        self.goal = problem.goal
        self.budget = MAX_STEPS
        self.members: dict[str, dict[str, None]] = {name: {} for name in logic.domain.types}
        for name, kind in problem.objects.items():
            for each in (kind, *logic.domain.types[kind]):
                self.members[each][name] = None
        self.rows: dict[str, dict[Row, None]] = {}
        self._indexes: dict[str, dict[tuple[int, ...], dict[Row, list[Row]]]] = {}
        for predicate, *row in problem.facts:
            self.rows.setdefault(predicate, {})[tuple(row)] = None
        for kind, names in self.members.items():
            if kind not in logic.domain.predicates:
                self.rows[kind] = {(name,): None for name in names}  # a type used as a predicate

    def holds_always(self, atom: Row) -> bool:
        """Whether a fact that no action changes is true."""
        if atom[0] == "=":
            return atom[1] == atom[2]
        return atom[1:] in self.rows.get(atom[0], ())

    def possible(self, atom: Row) -> bool:
        """Whether a fact is true or can become so."""
        return atom[1:] in self.rows.get(atom[0], ())

    def lookup(self, predicate: str, positions: tuple[int, ...], key: Row) -> list[Row]:
        """Rows of ``predicate`` with ``key`` at ``positions``."""
        indexes = self._indexes.setdefault(predicate, {})
        index = indexes.get(positions)
        if index is None:
            index = indexes[positions] = {}
            for row in self.rows.get(predicate, ()):
                index.setdefault(tuple([row[i] for i in positions]), []).append(row)
        return index.get(key, [])

    def add(self, predicate: str, row: Row) -> None:
        """Add a row, keeping indexes in step."""
        self.rows.setdefault(predicate, {})[row] = None
        for positions, index in self._indexes.get(predicate, {}).items():
            index.setdefault(tuple([row[i] for i in positions]), []).append(row)

    def bindings(self, steps: tuple[Step, ...], binding: Binding, at: int = 0) -> Iterator[Binding]:
        """All ways to carry out ``steps``; yields the same dictionary every time, changed in place."""
        if at == len(steps):
            yield binding
            return
        step = steps[at]
        if isinstance(step, Match):
            found = self.lookup(step.predicate, step.positions, tuple([binding.get(k, k) for k in step.keys]))
            self.budget -= len(found) + 1
            if self.budget < 0:
                raise GameError(_TOO_LARGE)
            for row in found:
                for position, variable, kind in step.fresh:
                    value = row[position]
                    if value not in self.members.get(kind, ()):
                        break
                    binding[variable] = value
                else:
                    if all(row[a] == row[b] for a, b in step.repeated):
                        yield from self.bindings(steps, binding, at + 1)
            for _, variable, _ in step.fresh:
                binding.pop(variable, None)
        else:
            members = self.members.get(step.type, {})
            self.budget -= len(members) + 1
            if self.budget < 0:
                raise GameError(_TOO_LARGE)
            for value in members:
                binding[step.variable] = value
                yield from self.bindings(steps, binding, at + 1)
            binding.pop(step.variable, None)

    def allowed(self, case: Case, binding: Binding) -> bool:
        """Whether equalities and fixed facts let ``case`` be true."""
        for atom in case.positive:
            if atom.predicate == "=" and binding.get(atom.args[0], atom.args[0]) != binding.get(
                atom.args[1], atom.args[1]
            ):
                return False
        return not any(atom.predicate not in self.fluents and self.fixed(atom, binding) for atom in case.negative)

    def fixed(self, atom: Atom, binding: Binding) -> bool:
        return self.holds_always((atom.predicate, *[binding.get(name, name) for name in atom.args]))

    def explore(self) -> None:
        """Add to ``rows`` every fact that actions can bring about, undoing and prohibitions left aside."""
        rules: dict[str, list[_Rule]] = {}
        ready: list[_Rule] = []
        for rule in _rules(self.logic):
            atoms = [atom for atom in rule.case.positive if atom.predicate in self.fluents]
            for atom in atoms:
                rules.setdefault(atom.predicate, []).append(rule.triggered(atom, self.fluents))
            if not atoms:
                ready.append(rule.triggered(None, self.fluents))
        queue: list[Row] = [fact for fact in sorted(self.initial) if fact[0] in rules]
        for predicate in rules:  # facts enter one by one, so that rules see every pair of them once
            self.rows.pop(predicate, None)
            self._indexes.pop(predicate, None)
        for rule in ready:
            for binding in self.bindings(rule.steps, {}):
                self._derive(rule, binding, queue)
        seen: set[Row] = set()
        while queue:
            fact = queue.pop()
            if fact in seen:
                continue
            seen.add(fact)
            predicate, row = fact[0], fact[1:]
            if row not in self.rows.get(predicate, ()):
                self.add(predicate, row)
            for rule in rules.get(predicate, ()):
                binding = rule.unify(row, self)
                if binding is not None:
                    for found in self.bindings(rule.steps, binding):
                        self._derive(rule, found, queue)

    def _derive(self, rule: _Rule, binding: Binding, queue: list[Row]) -> None:
        head = rule.head
        row = tuple([binding.get(name, name) for name in head.args])
        if row not in self.rows.get(head.predicate, ()) and self.allowed(rule.case, binding):
            self.add(head.predicate, row)
            queue.append((head.predicate, *row))


class _Rule:
    """``head`` can come about where ``case`` can; ``steps`` complete a binding that ``trigger`` began."""

    __slots__ = ("case", "fluents", "head", "steps", "trigger", "types")

    def __init__(self, case: Case, head: Atom):
        self.case = case
        self.head = head
        self.trigger: Atom | None = None
        self.types = dict(case.variables)
        self.steps: tuple[Step, ...] = ()

    def triggered(self, trigger: Atom | None, fluents: frozenset[str]) -> _Rule:
        rule = _Rule(self.case, self.head)
        rule.trigger = trigger
        rest = list(self.case.positive)
        bound: set[str] = set()
        if trigger is not None:
            rest.remove(trigger)
            bound = set(trigger.args) & self.types.keys()
        rule.steps = plan(rest, self.case.variables, bound, fluents)
        return rule

    def unify(self, row: Row, world: World) -> Binding | None:
        """The binding under which the trigger is this row, or None."""
        assert self.trigger is not None
        return unify(self.trigger, row, self.types, world)


def unify(atom: Atom, row: Row, types: dict[str, str], world: World) -> Binding | None:
    """The binding of ``types``' variables under which ``atom`` is ``row``, or None; checks types."""
    binding: Binding = {}
    for name, value in zip(atom.args, row, strict=True):
        if name in types:
            if binding.setdefault(name, value) != value or value not in world.members.get(types[name], ()):
                return None
        elif name != value:
            return None
    return binding


def _rules(logic: Logic) -> Iterator[_Rule]:
    for schema in logic.schemas:
        parameters = Case(schema.action.parameters)
        for case in schema.cases:
            for outcome in schema.outcomes:
                if not outcome.literal.negated:
                    for condition in outcome.cases:
                        whole = parameters.joined(case).joined(Case(outcome.variables)).joined(condition)
                        yield _Rule(whole, outcome.literal)
