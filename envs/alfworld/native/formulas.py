"""PDDL domains and problems, and their conditions: in negation normal form, as alternatives, and as lookups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

MAX_CASES = 256  # alternatives of one condition; the shipped domain needs 2
MAX_ATOMS = 256  # atoms of one alternative; the shipped domain needs 7


class GameError(ValueError):
    """A game that cannot be compiled or run; the message names the place."""

    def inside(self, place: str) -> GameError:
        """The same error with ``place`` in front: ``pddl_problem: line 3: ...``."""
        return GameError(f"{place}: {self}")


@dataclass(frozen=True, slots=True)
class Atom:
    """``(predicate arg ...)`` or its negation; arguments are objects or variables (``?x``)."""

    predicate: str
    args: tuple[str, ...]
    negated: bool = False

    @property
    def negation(self) -> Atom:
        return Atom(self.predicate, self.args, not self.negated)

    def __str__(self) -> str:
        text = f"({' '.join((self.predicate, *self.args))})"
        return f"(not {text})" if self.negated else text


@dataclass(frozen=True, slots=True)
class Junction:
    """All (``conjunctive``) or any of ``parts``."""

    conjunctive: bool
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    """``part`` for all (``universal``) or some values of ``variables``, which are (name, type)."""

    universal: bool
    variables: tuple[tuple[str, str], ...]
    part: Formula


Formula = Atom | Junction | Quantified
TRUE = Junction(True, ())
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Effect:
    """For all ``variables``: if ``condition`` holds, ``literal`` becomes true."""

    variables: tuple[tuple[str, str], ...]
    condition: Formula
    literal: Atom


@dataclass(frozen=True, slots=True)
class Action:
    """An action of a domain. parameters: (name, type) of each."""

    name: str
    parameters: tuple[tuple[str, str], ...]
    precondition: Formula
    effects: tuple[Effect, ...]


@dataclass(slots=True)
class PddlDomain:
    """types: name -> all its supertypes. predicates: name -> number of arguments. fluents: predicates that change."""

    name: str
    types: dict[str, tuple[str, ...]]
    predicates: dict[str, int]
    constants: dict[str, str]
    actions: dict[str, Action]
    fluents: frozenset[str] = field(default=frozenset())


@dataclass(slots=True)
class PddlProblem:
    """objects: name -> type, with constants. facts: (predicate, arg, ...). measured: objects in ``(= (f ..) 1)``."""

    objects: dict[str, str]
    facts: list[tuple[str, ...]]
    measured: list[str]
    goal: Formula


# Alternatives ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Case:
    """One alternative of a condition: all of its atoms and ``universal`` parts, for some values of ``variables``."""

    variables: tuple[tuple[str, str], ...] = ()
    positive: tuple[Atom, ...] = ()
    negative: tuple[Atom, ...] = ()
    universal: tuple[Quantified, ...] = ()

    def joined(self, case: Case) -> Case:
        """The conjunction of this case and ``case``."""
        return Case(
            self.variables + case.variables,
            self.positive + case.positive,
            self.negative + case.negative,
            self.universal + case.universal,
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
        return _few([case for formula_case in formula.parts for case in cases(formula_case)])
    product = [Case()]
    for formula_case in formula.parts:
        product = list(_few([base.joined(further_case) for further_case in cases(formula_case) for base in product]))
    return tuple(product)


def _few(alternatives: list[Case]) -> tuple[Case, ...]:
    if len(alternatives) > MAX_CASES:
        raise GameError(f"a condition has more than {MAX_CASES} alternatives")
    if any(len(case.positive) + len(case.negative) > MAX_ATOMS for case in alternatives):
        raise GameError(f"a condition has more than {MAX_ATOMS} parts")
    return tuple(alternatives)


# Lookups --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """Look up the rows of ``predicate`` whose ``positions`` hold the values of ``keys``, and bind ``fresh`` from them.

    fluent: the predicate's facts change.
    keys: variables or objects.
    fresh: (position, variable, type).
    repeated: pairs of positions that must be equal because the atom names a fresh variable twice.
    """

    predicate: str
    fluent: bool
    positions: tuple[int, ...]
    keys: tuple[str, ...]
    fresh: tuple[tuple[int, str, str], ...]
    repeated: tuple[tuple[int, int], ...] = ()

    @property
    def bound(self) -> tuple[str, ...]:
        return tuple(name for _, name, _ in self.fresh)


@dataclass(frozen=True, slots=True)
class TypeScan:
    """Try every object of a type."""

    variable: str
    type: str

    @property
    def bound(self) -> tuple[str, ...]:
        return (self.variable,)


Step = Match | TypeScan


def plan(
    atoms: Iterable[Atom], variables: Iterable[tuple[str, str]], bound: Iterable[str], fluents: frozenset[str]
) -> tuple[Step, ...]:
    """Order the positive ``atoms`` into lookups that bind ``variables``; those in ``bound`` have values.

    Checks come first, then lookups of changing facts (few rows, often none), then of static ones; lookups that share no
    variable with the earlier ones come last.
    """
    types = dict(variables)
    bound_names = set(bound)
    remaining = [atom for atom in atoms if atom.predicate != "="]
    steps: list[Step] = []

    def cost(atom: Atom) -> tuple[bool, int, bool]:
        unknown = any(name in types and name not in bound_names for name in atom.args)
        fluent = atom.predicate in fluents
        if bound_names.intersection(atom.args):
            return unknown, 0, not fluent
        names_object = any(name not in types for name in atom.args)
        return unknown, 1 if names_object else 2, fluent

    while remaining:
        atom = min(remaining, key=cost)
        remaining.remove(atom)
        indices: dict[str, int] = {}
        repeated = []
        for position, name in enumerate(atom.args):
            if name in types and name not in bound_names:
                if name in indices:
                    repeated.append((indices[name], position))
                else:
                    indices[name] = position
        positions = tuple(i for i, name in enumerate(atom.args) if name not in indices)
        fresh = tuple((position, name, types[name]) for name, position in indices.items())
        keys = tuple(atom.args[i] for i in positions)
        steps.append(Match(atom.predicate, atom.predicate in fluents, positions, keys, fresh, tuple(repeated)))
        bound_names |= set(indices)
    steps += [TypeScan(name, types[name]) for name in types if name not in bound_names]
    return tuple(steps)
