"""What PDDL says: formulas in negation normal form, actions, domains and problems."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


class GameError(ValueError):
    """A game that cannot be played; the message names the place and, once known, the file."""

    def inside(self, place: object) -> GameError:
        """The same error, one level further out: ``game.tw-pddl: pddl_problem: line 3: ...``."""
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
    """All (``conjunctive``) or any of ``parts``; without parts the constants true and false."""

    conjunctive: bool
    parts: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Quantified:
    """``part`` for all (``universal``) or for some objects; variables are (name, type)."""

    universal: bool
    variables: tuple[tuple[str, str], ...]
    part: Formula


Formula = Atom | Junction | Quantified
TRUE = Junction(True, ())
NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Effect:
    """For all ``variables``: when ``condition`` holds, ``literal`` becomes so."""

    variables: tuple[tuple[str, str], ...]
    condition: Formula
    literal: Atom


@dataclass(frozen=True, slots=True)
class Action:
    name: str
    parameters: tuple[tuple[str, str], ...]
    precondition: Formula
    effects: tuple[Effect, ...]


@dataclass(slots=True)
class PddlDomain:
    """types: name -> all its supertypes. predicates: name -> number of arguments. constants: name -> type."""

    name: str
    types: dict[str, tuple[str, ...]]
    predicates: dict[str, int]
    constants: dict[str, str]
    actions: dict[str, Action]
    fluents: frozenset[str] = field(default=frozenset())


@dataclass(slots=True)
class PddlProblem:
    """objects: name -> type, constants too. facts: (predicate, arg, ...). measured: objects in ``(= (f ..) 1)``."""

    objects: dict[str, str]
    facts: list[tuple[str, ...]]
    measured: list[str]
    goal: Formula
