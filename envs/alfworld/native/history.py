"""Which traces of the past a text can show, and so belong in the state key.

TextWorld keeps facts that were made false: after a cup is taken from a shelf, ``not_inreceptacle cup shelf`` is true
until the cup is put back. The shipped grammar asks for such a trace along with other facts that mostly exclude it. A
trace that can never show is left out of the key, so that states with the same future have the same key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gagpo.envs.alfworld.native.formulas import Atom, Match, plan
from gagpo.envs.alfworld.native.grammar import Condition
from gagpo.envs.alfworld.native.logic import ConditionalEffect, Logic, Schema
from gagpo.envs.alfworld.native.state import Binding, Fact, State, StaticFacts, ground, unify


def can_show(logic: Logic, static: StaticFacts, undone: Fact) -> bool:
    """Whether a text can ever depend on the trace of ``undone``, a fact that was true and is not."""
    trace = f"not_{undone[0]}"
    for query in logic.queries:
        for condition in query:
            if condition.predicate == trace and _can_be_answered(logic, static, query, condition, undone):
                return True
    return False


def _can_be_answered(
    logic: Logic, static: StaticFacts, query: tuple[Condition, ...], condition: Condition, undone: Fact
) -> bool:
    """Whether all of ``query`` can be true with ``condition`` about ``undone``."""
    variables = {f"?{name} {type_name}": type_name for c in query for name, type_name in c.parameters}
    atoms = [_atom(c) for c in query]
    binding = unify(_atom(condition), undone[1:], variables, static)
    if binding is None:
        return False
    fluents = logic.domain.fluents
    fixed = [a for a in atoms if a.predicate in logic.domain.predicates and a.predicate not in fluents]
    moving = [a for a in atoms if a.predicate in fluents and a.predicate not in logic.divergent]
    for solution in _solutions(static, fixed, variables, binding, fluents):
        facts = ground(moving, solution)
        if not any(_exclude(logic, static, fact, undone) for fact in facts if not any("?" in name for name in fact)):
            return True
    return False


def _atom(condition: Condition) -> Atom:
    return Atom(condition.predicate, tuple(f"?{name} {type_name}" for name, type_name in condition.parameters))


def _exclude(logic: Logic, static: StaticFacts, fact: Fact, undone: Fact) -> bool:
    """Whether ``fact`` is never true while the trace of ``undone`` is there.

    At the start there are no traces. It stays so if every action that adds ``fact`` also adds ``undone``, and every
    action that removes ``undone`` also removes ``fact``.
    """
    if undone[0] in logic.divergent:
        return False
    return all(undone in added for added, _ in _effects(logic, static, fact, False)) and all(
        fact in removed for _, removed in _effects(logic, static, undone, True)
    )


def _effects(logic: Logic, static: StaticFacts, fact: Fact, negated: bool) -> Iterator[tuple[set[Fact], set[Fact]]]:
    """The facts that each action adding ``fact`` (or removing it, if ``negated``) always adds and removes."""
    for schema in logic.schemas:
        for outcome in schema.outcomes:
            if outcome.literal.predicate == fact[0] and outcome.literal.negated == negated:
                yield from _instances(logic, static, schema, outcome, fact)


def _instances(
    logic: Logic, static: StaticFacts, schema: Schema, outcome: ConditionalEffect, fact: Fact
) -> Iterator[tuple[set[Fact], set[Fact]]]:
    certain = [effect.literal for effect in schema.outcomes if effect.always and not effect.variables]
    fluents = logic.domain.fluents
    for case in schema.cases:
        # Only static facts are required: the others may have been true at some time.
        variables = dict((*schema.action.parameters, *case.variables, *outcome.variables))
        binding = unify(outcome.literal, fact[1:], variables, static)
        if binding is None:
            continue
        fixed = [atom for atom in case.positive if atom.predicate not in fluents]
        for solution in _solutions(static, fixed, variables, binding, fluents):
            added = set(ground([literal for literal in certain if not literal.negated], solution))
            yield added, set(ground([literal for literal in certain if literal.negated], solution)) - added


def _solutions(
    static: StaticFacts, atoms: Iterable[Atom], variables: dict[str, str], binding: Binding, fluents: frozenset[str]
) -> Iterator[Binding]:
    """Bindings that static facts allow; variables that occur in none of ``atoms`` stay unbound."""
    steps = plan(atoms, variables.items(), binding, fluents)
    return static.solutions(tuple(step for step in steps if isinstance(step, Match)), dict(binding), State())
