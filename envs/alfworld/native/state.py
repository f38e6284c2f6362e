"""The state of a game: :class:`StaticFacts` that no action changes, and a :class:`State` of those that change."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gagpo.envs.alfworld.names import spoken_names
from gagpo.envs.alfworld.native.expression import Entity
from gagpo.envs.alfworld.native.formulas import (
    Atom,
    Case,
    Formula,
    GameError,
    Match,
    PddlDomain,
    PddlProblem,
    Quantified,
    Step,
    plan,
)

Row = tuple[str, ...]  # the objects of a fact
Fact = tuple[str, ...]  # its predicate, then its objects
Slot = tuple[str, tuple[int, ...], Row]  # predicate, positions, the objects there
Binding = dict[str, str]
Indexes = Mapping[str, tuple[tuple[int, ...], ...]]  # predicate -> the positions its rows are indexed by

MAX_STEPS = 1_000_000  # lookups per command; a large kitchen takes about 1,000


@dataclass(slots=True, eq=False)
class State:
    """The changing facts that are true: as a set (``facts``), and as sorted rows by indexed objects (``slots``)."""

    facts: set[Fact] = field(default_factory=set)
    slots: dict[Slot, tuple[Row, ...]] = field(default_factory=dict)

    def copy(self) -> State:
        # Shallow copies suffice: facts and rows are tuples, and a change replaces a slot's tuple.
        return State(self.facts.copy(), self.slots.copy())

    def insert(self, fact: Fact, slots: Iterable[Slot]) -> None:
        """Add a fact that is not there yet to the set and to its ``slots``."""
        self.facts.add(fact)
        row = fact[1:]
        for slot in slots:
            rows = self.slots.get(slot, ())
            index = bisect_left(rows, row)
            self.slots[slot] = (*rows[:index], row, *rows[index:])

    def discard(self, fact: Fact, slots: Iterable[Slot]) -> None:
        """Remove a fact that is there."""
        self.facts.discard(fact)
        row = fact[1:]
        for slot in slots:
            rows = self.slots[slot]
            index = bisect_left(rows, row)
            self.slots[slot] = rows[:index] + rows[index + 1 :]


class StaticFacts:
    """The objects of a problem and the facts that no action changes.

    types: object -> type.
    members: type -> its objects, subtypes included.
    rows: predicate -> its rows.
    cache: texts and rows that narration has computed for these objects.
    """

    def __init__(self, domain: PddlDomain, problem: PddlProblem):
        self.domain = domain
        self.types = problem.objects
        ids = {name for _, *row in problem.facts for name in row} | set(problem.measured)
        spoken = spoken_names(ids)
        self.entities = {id: Entity(id, self.types.get(id, "object"), text) for id, text in spoken.items()}
        self.steps_left = MAX_STEPS
        self.members: dict[str, set[str]] = {name: set() for name in domain.types}
        for name, object_type in problem.objects.items():
            for type_name in (object_type, *domain.types[object_type]):
                self.members[type_name].add(name)
        self.rows: dict[str, set[Row]] = {}
        self.initial: set[Fact] = set()
        fluents = domain.fluents
        for fact in problem.facts:
            if fact[0] in fluents:
                self.initial.add(fact)
            else:
                self.rows.setdefault(fact[0], set()).add(fact[1:])
        for object_type, names in self.members.items():
            if object_type not in domain.predicates:
                self.rows[object_type] = {(name,) for name in names}  # a type used as a predicate
        self._indexes: dict[tuple[str, tuple[int, ...]], dict[Row, list[Row]]] = {}
        self.cache: dict[object, dict[Any, Any]] = {}

    def cast(self, name: str, kind: str) -> str:
        """The argument that the text sees for object ``name`` and a parameter of type ``kind``.

        In TextWorld, an object of a narrower type than the parameter's matches no fact.
        """
        if not name or self.types[name] == kind:
            return name
        strange = f"{name}\0{kind}"
        if name in self.entities:
            self.entities[strange] = self.entities[name]
        return strange

    def lookup(self, predicate: str, positions: tuple[int, ...], key: Row) -> list[Row]:
        """The sorted rows of a static predicate with ``key`` at ``positions``."""
        index = self._indexes.get((predicate, positions))
        if index is None:
            index = self._indexes[predicate, positions] = {}
            for row in sorted(self.rows.get(predicate, ())):
                index.setdefault(tuple([row[i] for i in positions]), []).append(row)
        return index.get(key, [])

    def solutions(self, steps: tuple[Step, ...], binding: Binding, state: State, index: int = 0) -> Iterator[Binding]:
        """Yield all bindings under which ``steps`` succeed, always as the same dictionary, changed in place."""
        # A backtracking search: each step binds its variables, and unbinds them when all its rows were tried. Callers
        # that need a solution after the next one must copy it.
        if index == len(steps):
            yield binding
            return
        step = steps[index]
        if not isinstance(step, Match):
            for value in self.members.get(step.type, ()):
                self.spend(1)
                binding[step.variable] = value
                yield from self.solutions(steps, binding, state, index + 1)
            binding.pop(step.variable, None)
            return
        key = tuple([binding.get(name, name) for name in step.keys])
        rows: Iterable[Row]
        if not step.fresh:
            if step.fluent:
                fact_holds = (step.predicate, *key) in state.facts
            else:
                fact_holds = key in self.rows.get(step.predicate, ())
            if fact_holds:
                yield from self.solutions(steps, binding, state, index + 1)
            return
        if step.fluent:
            rows = state.slots.get((step.predicate, step.positions, key), ())
        else:
            rows = self.lookup(step.predicate, step.positions, key)
        for row in rows:
            # A row whose types fit binds the fresh variables for the remaining steps.
            self.spend(1)
            for position, variable, type_name in step.fresh:
                value = row[position]
                if value not in self.members.get(type_name, ()):
                    break
                binding[variable] = value
            else:
                if not step.repeated or all(row[a] == row[b] for a, b in step.repeated):
                    yield from self.solutions(steps, binding, state, index + 1)
        for _, variable, _ in step.fresh:
            binding.pop(variable, None)

    def refill(self) -> None:
        """Reset the budget of lookups; called before every command."""
        self.steps_left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Count ``steps`` lookups; raises GameError when the command has used its budget."""
        self.steps_left -= steps
        if self.steps_left < 0:
            raise GameError(f"one command takes more than {MAX_STEPS:,} lookups: the game is too large")

    def allowed(self, case: Case, binding: Binding) -> bool:
        """Whether the equalities and static facts of ``case`` hold; changing facts are not checked."""
        for atom in case.positive:
            if atom.predicate == "=" and not self._equal(atom, binding):
                return False
        for atom in case.negative:
            if atom.predicate == "=":
                if self._equal(atom, binding):
                    return False
            elif atom.predicate not in self.domain.fluents:
                row = tuple([binding.get(name, name) for name in atom.args])
                if row in self.rows.get(atom.predicate, ()):
                    return False
        return True

    @staticmethod
    def _equal(atom: Atom, binding: Binding) -> bool:
        first, second = atom.args
        return binding.get(first, first) == binding.get(second, second)

    def case_holds(self, case: Case, steps: tuple[Step, ...], binding: Binding, state: State) -> bool:
        """Whether ``case`` is true in ``state``; ``steps`` is the plan for its unbound variables."""
        for solution in self.solutions(steps, dict(binding), state):
            if not self.allowed(case, solution) or not state.facts.isdisjoint(ground(case.negative, solution)):
                continue
            if all(self.holds(formula, solution, state) for formula in case.universal):
                return True
        return False

    def holds(self, formula: Formula, binding: Binding, state: State) -> bool:
        """Whether a condition is true in ``state``."""
        if isinstance(formula, Atom):
            fact = (formula.predicate, *[binding.get(name, name) for name in formula.args])
            if fact[0] == "=":
                return (fact[1] == fact[2]) != formula.negated
            if fact[0] in self.domain.fluents:
                fact_holds = fact in state.facts
            else:
                fact_holds = fact[1:] in self.rows.get(fact[0], ())
            return fact_holds != formula.negated
        if isinstance(formula, Quantified):
            steps = plan((), formula.variables, (), frozenset())
            truths = (self.holds(formula.part, inner, state) for inner in self.solutions(steps, dict(binding), state))
            return all(truths) if formula.universal else any(truths)
        verdicts = (self.holds(operand, binding, state) for operand in formula.parts)
        return all(verdicts) if formula.conjunctive else any(verdicts)


def ground(atoms: Iterable[Atom], binding: Binding) -> list[Fact]:
    """The facts that ``atoms`` stand for under ``binding``."""
    return [(atom.predicate, *[binding.get(name, name) for name in atom.args]) for atom in atoms]


def unify(atom: Atom, row: Row, types: Mapping[str, str], static: StaticFacts) -> Binding | None:
    """The binding under which ``atom`` becomes ``row``, or None; ``types`` are those of the variables."""
    binding: Binding = {}
    for name, value in zip(atom.args, row, strict=True):
        if name in types:
            if binding.setdefault(name, value) != value or value not in static.members.get(types[name], ()):
                return None
        elif name != value:
            return None
    return binding


def slots_of(fact: Fact, indexes: Indexes) -> tuple[Slot, ...]:
    """The slots a fact belongs to."""
    row = fact[1:]
    return tuple([(fact[0], at, tuple([row[i] for i in at])) for at in indexes.get(fact[0], ())])
