"""Conditions as alternatives of atoms, and the order in which atoms are looked up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gagpo.envs.alfworld.native.formulas import Atom, Formula, GameError, Quantified

MAX_CASES = 256  # alternatives of one condition; the shipped domain needs 2
MAX_ATOMS = 256  # atoms of one alternative; the shipped domain needs 7


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
    if any(len(case.positive) + len(case.negative) > MAX_ATOMS for case in found):
        raise GameError(f"a condition has more than {MAX_ATOMS} parts")
    return tuple(found)


# Joins ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Match:
    """Look up the rows of ``predicate`` whose ``positions`` hold the values of ``keys``; bind ``fresh`` from the row.

    fluent: the predicate's facts change. keys: variables or objects. fresh: (position, variable, type).
    repeated: pairs of positions that must be equal because the atom names a fresh variable twice.
    """

    predicate: str
    fluent: bool
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
    """Order the positive ``atoms`` into lookups that bind ``variables``, given that ``bound`` have values.

    Checks come first, then lookups of what changes (few rows, and often none), then of what does not; those that share
    no variable with what is known come last.
    """
    types = dict(variables)
    known = set(bound)
    left = [atom for atom in atoms if atom.predicate != "="]
    steps: list[Step] = []

    def cost(atom: Atom) -> tuple[bool, int, bool]:
        unknown = any(name in types and name not in known for name in atom.args)
        linked = 0 if known.intersection(atom.args) else 1 if any(name not in types for name in atom.args) else 2
        fluent = atom.predicate in fluents
        return (unknown, linked, not fluent) if linked == 0 else (unknown, linked, fluent)

    while left:
        # The cheapest lookup by what is known so far; then more is known.
        atom = min(left, key=cost)
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
        steps.append(Match(atom.predicate, atom.predicate in fluents, positions, keys, fresh, tuple(repeated)))
        known |= set(places)
    steps += [Pick(name, types[name]) for name in types if name not in known]
    return tuple(steps)
