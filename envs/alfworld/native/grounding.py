"""Ground actions of one game, found when a place is first visited and kept for all later episodes."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from gagpo.envs.alfworld.native.formulas import Atom, Case, GameError, Match, PddlProblem, Quantified, Step, cases, plan
from gagpo.envs.alfworld.native.history import can_show
from gagpo.envs.alfworld.native.logic import ActionCase, CaseTrie, Logic, lookups, mentioned
from gagpo.envs.alfworld.native.narration import TEXT_COPY, Env
from gagpo.envs.alfworld.native.state import Binding, Fact, Row, Slot, State, StaticFacts, ground, slots_of, unify

# Facts, slots and changes are bare tuples, not dataclasses, because every command hashes and unpacks dozens of them.
# Measured on random walks: a step takes about 18 microseconds; changes and the 4-tuples of ``Operator.conditional`` as
# slotted dataclasses add about 1, facts hashed in Python (as those of a frozen dataclass are) about another 1.
Change = tuple[Fact, tuple[Slot, ...], int]  # a fact, its slots, its weight in the state key
Conditional = tuple[frozenset[Fact], frozenset[Fact], bool, Change]  # facts needed, facts forbidden, added, the change
NO_FACTS: frozenset[Fact] = frozenset()


@dataclass(slots=True, eq=False)
class Operator:
    """A ground action.

    env: the objects of its parameters, with blanks where it is shared between places.
    need, forbid: changing facts that must be true, or false, beyond those it was found by.
    universal: its universal conditions.
    ready: the fields below are filled in; this happens when it is first carried out.
    leaves_place: it also removes the fact that the place stands for.
    changes_commands: it may change which commands are admissible.
    changes_goal: it may change whether the game is won.
    """

    entry: ActionCase
    binding: Binding
    env: Env
    command: str
    need: frozenset[Fact] = NO_FACTS
    forbid: frozenset[Fact] = NO_FACTS
    universal: tuple[Quantified, ...] = ()
    leaves_place: bool = False
    ready: bool = False
    add: tuple[Change, ...] = ()
    remove: tuple[Change, ...] = ()
    conditional: tuple[Conditional, ...] = ()
    changes_commands: bool = False
    changes_goal: bool = False


@dataclass(slots=True, eq=False)
class FactWatch:
    """Operators for the rows of one slot, which is read only when ``need`` is true and ``forbid`` is false."""

    entry: ActionCase
    binding: Binding
    slot: Slot
    need: frozenset[Fact] = NO_FACTS
    forbid: frozenset[Fact] = NO_FACTS
    operators: dict[Row, list[Operator]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Place:
    """What can be done where the agent is.

    free: command -> operator without further conditions.
    order: the commands of ``free``, sorted.
    checked: operators with conditions.
    leaving: the change of going away.
    binding: id of an entry with loose variables -> their values here.
    """

    free: dict[str, Operator] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    checked: list[Operator] = field(default_factory=list)
    watches: list[FactWatch] = field(default_factory=list)
    leaving: Change | None = None
    binding: dict[int, Binding] = field(default_factory=dict)

    def add(self, operator: Operator) -> None:
        if operator.need or operator.forbid or operator.universal:
            self.checked.append(operator)
        else:
            self.free.setdefault(operator.command, operator)


@dataclass(slots=True, eq=False)
class SharedOperators:
    """Operators that many places have in common. no_ops: fact -> operators whose only effect is to add it."""

    free: dict[str, Operator] = field(default_factory=dict)
    checked: list[Operator] = field(default_factory=list)
    no_ops: dict[Fact, set[Operator]] = field(default_factory=dict)

    def add(self, operator: Operator, only_effect: Fact | None) -> None:
        if operator.need or operator.forbid or operator.command in self.free:
            self.checked.append(operator)
        else:
            self.free[operator.command] = operator
        if only_effect is not None:
            self.no_ops.setdefault(only_effect, set()).add(operator)


class GroundGame:
    """A compiled problem, shared between episodes.

    start: the first state.
    salt: the part of the state key that stands for everything static.
    """

    def __init__(self, logic: Logic, problem: PddlProblem, task: str, salt: bytes):
        self.logic = logic
        self.task = task
        self.static = static = StaticFacts(logic.domain, problem)
        for schema in logic.schemas:
            for name in (name for outcome in schema.outcomes for name in outcome.literal.args):
                if not name.startswith("?") and name not in static.types:
                    raise GameError(f"pddl_domain: action {schema.action.name}: an effect on the unknown object {name}")
        fluents = logic.domain.fluents
        self.goal = [(case, plan(case.positive, case.variables, (), fluents)) for case in cases(problem.goal)]
        self.goal_predicates = frozenset(name for case, _ in self.goal for name in mentioned(case)) & fluents
        indexed_positions = logic.lookups.union(*[lookups(steps) for _, steps in self.goal])
        self.indexes: dict[str, tuple[tuple[int, ...], ...]] = {}
        for predicate, positions in sorted(indexed_positions):
            self.indexes[predicate] = (*self.indexes.get(predicate, ()), positions)
        self.relevant = self._relevant()
        # The state key is a Zobrist hash: the XOR of the weights (128 bits) of all facts that are true. A command
        # updates it in a few operations, whatever the size of the game.
        self.salt = int.from_bytes(hashlib.blake2b(salt, digest_size=16).digest(), "big")
        self._weights: dict[Fact, int] = {}
        self.start = State()
        self.start_key = self.salt
        for fact in sorted(static.initial):
            for fact_form, slots, weight in self._forms(fact, True):
                self.start.insert(fact_form, slots)
                self.start_key ^= weight
        self.places: dict[tuple[Row, bool], Place] = {}
        self._shared: dict[tuple[ActionCase, Row], SharedOperators] = {}
        self.everywhere = Place()
        self._enter(self.everywhere, logic.everywhere, {})
        self.trigger_slot: Slot = (logic.trigger or "", (), ())

    def _relevant(self) -> frozenset[str]:
        """Predicates that preconditions, goal or texts depend on; facts of others (``checked``) are dropped."""
        logic = self.logic
        predicates = set(logic.governing) | self.goal_predicates | logic.mentioned | logic.negated_queries
        size = -1
        while size != len(predicates):
            size = len(predicates)
            for schema in logic.schemas:
                for outcome in schema.outcomes:
                    if outcome.literal.predicate in predicates:
                        predicates = predicates.union(*[mentioned(case) for case in outcome.cases])
        return frozenset(predicates & logic.domain.fluents)

    # Facts ------------------------------------------------------------------------------------------------------------

    def change(self, fact: Fact) -> Change:
        """The change of ``fact``. A trace of the past that no text can show has weight 0 in the state key."""
        weight = self._weights.get(fact)
        if weight is None:
            digest = hashlib.blake2b(" ".join(fact).encode(), digest_size=16).digest()
            weight = int.from_bytes(digest, "big")
            undone = (fact[0][4:], *fact[1:])
            if fact[0] not in self.relevant and undone[0] in self.logic.negated_queries:
                weight *= can_show(self.logic, self.static, undone)
            self._weights[fact] = weight
        return fact, slots_of(fact, self.indexes), weight

    def _forms(self, fact: Fact, planned: bool) -> list[Change]:
        """The changes of a fact for the planner (if ``planned``) and, where they may disagree, for the text."""
        if fact[0] not in self.relevant:
            return []
        fact_forms = [fact] if planned else []
        if fact[0] in self.logic.divergent and fact[0] in self.logic.mentioned:
            fact_forms.append((fact[0] + TEXT_COPY, *fact[1:]))
        return [self.change(fact_form) for fact_form in fact_forms]

    def won(self, state: State) -> bool:
        return any(self.static.case_holds(case, steps, {}, state) for case, steps in self.goal)

    # Places -----------------------------------------------------------------------------------------------------------

    def place(self, row: Row, alone: bool) -> Place:
        """What can be done where the trigger's fact with ``row`` is true; ``alone``: it is the only such fact."""
        index = self.places.get((row, alone))
        if index is None:
            index = self.places[row, alone] = Place()
            index.free.update(self.everywhere.free)
            index.watches += self.everywhere.watches
            index.checked += self.everywhere.checked
            index.leaving = self.change((self.logic.trigger or "", *row))
            for tree in self.logic.trees:
                binding = unify(tree.trigger, row, tree.types, self.static)
                if binding is not None:
                    self._enter(index, tree.root, binding)
                    if alone:
                        for entry in tree.shared:
                            self._enter_shared(index, entry, binding)
                    else:
                        self._enter(index, tree.separate, binding)
            index.order = sorted(index.free)
        return index

    def _enter(self, place: Place, branch: CaseTrie, binding: Binding) -> None:
        """Put the operators and watches of ``branch`` that static facts allow into ``place``."""
        for entry in branch.entries:
            if entry.has_restrictions and not self._permitted(entry.before_bans, binding):
                continue
            guard = entry.guard
            if guard is None:
                operator = self.operator(entry, binding)
                if operator is not None:
                    place.add(operator)
            else:
                key = tuple([binding.get(name, name) for name in guard.keys])
                watch = FactWatch(entry, binding.copy(), (guard.predicate, guard.positions, key))
                if entry.before_need:
                    watch.need = frozenset(ground(entry.before_need, binding))
                if entry.before_forbid:
                    watch.forbid = frozenset(ground(entry.before_forbid, binding))
                place.watches.append(watch)
        for step, further in branch.steps:
            for _ in self.static.solutions((step,), binding, self.start):
                self._enter(place, further, binding)

    def _permitted(self, bans: tuple[Atom, ...], binding: Binding) -> bool:
        return not any(fact[1:] in self.static.rows.get(fact[0], ()) for fact in ground(bans, binding))

    def _enter_shared(self, place: Place, entry: ActionCase, trigger_binding: Binding) -> None:
        """Add the operators that differ between places only in where the agent leaves from."""
        shared_binding = {key: value for key, value in trigger_binding.items() if key not in entry.loose}
        key = (entry, tuple(shared_binding.values()))
        shared = self._shared.get(key)
        if shared is None:
            shared = self._shared[key] = SharedOperators()
            for binding in self.static.solutions(entry.before, shared_binding, self.start):
                operator = self.operator(entry, binding)
                if operator is not None:
                    shared.add(operator, self._only_effect(operator))
        assert place.leaving is not None
        no_ops = shared.no_ops.get(place.leaving[0], ())
        place.free = shared.free | place.free
        for operator in no_ops:
            if place.free.get(operator.command) is operator:
                del place.free[operator.command]
        place.checked += [operator for operator in shared.checked if operator not in no_ops]
        place.binding[id(entry)] = trigger_binding

    def _only_effect(self, operator: Operator) -> Fact | None:
        """The one fact that a shared operator adds, if it does nothing else but remove its trigger."""
        entry = operator.entry
        literals = [outcome.literal for outcome in entry.schema.outcomes]
        added = set(ground([literal for literal in literals if not literal.negated], operator.binding))
        added -= set(ground(entry.fluent_positive, operator.binding))
        other_removals = [literal for literal in literals if literal.negated and literal.negation != entry.trigger]
        if len(added) == 1 and not other_removals:
            return added.pop()
        return None

    def expand(self, watch: FactWatch, row: Row, state: State) -> list[Operator]:
        """The operators of a watch for one row of its slot, cached in the watch if no later lookup can change them."""
        entry = watch.entry
        guard = entry.guard
        assert isinstance(guard, Match)
        operators: list[Operator] = []
        binding = dict(watch.binding)
        for position, variable, type_name in guard.fresh:
            if row[position] not in self.static.members.get(type_name, ()):
                break
            binding[variable] = row[position]
        else:
            if all(row[a] == row[b] for a, b in guard.repeated):
                for complete in self.static.solutions(entry.after, binding, state):
                    operator = self.operator(entry, complete)
                    if operator is not None:
                        operators.append(operator)
        if entry.static_after or not any(True for _ in self.static.solutions(entry.after_fixed, binding, state)):
            watch.operators[row] = operators
        return operators

    def operator(self, entry: ActionCase, binding: Binding) -> Operator | None:
        """The operator of a complete binding, or None if static facts rule it out."""
        if entry.has_restrictions and not self.static.allowed(entry.case, binding):
            return None
        bare = entry.loose and not entry.loose & binding.keys()
        if entry.may_be_no_op and not bare and not self._has_effect(entry, binding):
            return None
        schema = entry.schema
        env = tuple(
            [self.static.cast(binding.get(name, ""), type_name) for name, type_name in schema.action.parameters]
        )
        operator = Operator(entry, binding.copy(), env, schema.command.render(env, self.static, self.start))
        if entry.need:
            operator.need = frozenset(ground(entry.need, binding))
        if entry.fluent_negative:
            operator.forbid = frozenset(ground(entry.fluent_negative, binding))
        operator.universal = entry.case.universal
        operator.leaves_place = bool(bare)
        return operator

    def _has_effect(self, entry: ActionCase, binding: Binding) -> bool:
        """Whether the planner keeps this action: it drops those whose effects are all preconditions already."""
        required = set(ground(entry.fluent_positive, binding))
        forbidden = set(ground(entry.fluent_negative, binding))
        added: set[Fact] = set()
        removed: set[Fact] = set()
        for outcome in entry.schema.outcomes:
            if outcome.variables or not outcome.always:
                return True
            (removed if outcome.literal.negated else added).update(ground((outcome.literal,), binding))
        return bool(added - required or removed - added - forbidden)

    # Effects ----------------------------------------------------------------------------------------------------------

    def prepare(self, operator: Operator) -> None:
        """Fill in the effects of ``operator``."""
        entry = operator.entry
        binding = operator.binding
        required = ground(entry.fluent_positive, binding)
        forbidden = ground(entry.fluent_negative, binding)
        certain: dict[Fact, bool] = {}  # unconditionally added (True) or removed
        uncertain: list[tuple[frozenset[Fact], frozenset[Fact], Fact, bool]] = []
        for outcome in entry.schema.outcomes:
            literal = outcome.literal
            if literal.predicate not in self.relevant or (operator.leaves_place and literal.negation == entry.trigger):
                continue
            ignored = forbidden if literal.negated else required  # the planner drops effects that are preconditions
            if outcome.always and not outcome.variables:
                fact = (literal.predicate, *[binding.get(name, name) for name in literal.args])
                if fact not in ignored:
                    certain[fact] = certain.get(fact, False) or not literal.negated
                continue
            for condition in outcome.cases:
                for inner, need, forbid in self._conditions(condition, outcome.variables, binding):
                    # Conditions on changing facts are checked when the action is carried out.
                    fact = (literal.predicate, *[inner.get(name, name) for name in literal.args])
                    if fact in ignored:
                        continue
                    if need or forbid:
                        uncertain.append((need, forbid, fact, not literal.negated))
                    else:
                        certain[fact] = certain.get(fact, False) or not literal.negated
        self._set_effects(operator, certain, uncertain)
        operator.ready = True

    def _conditions(
        self, case: Case, variables: tuple[tuple[str, str], ...], binding: Binding
    ) -> Iterable[tuple[Binding, frozenset[Fact], frozenset[Fact]]]:
        """Bindings that static facts allow for an effect, each with the changing facts that it needs and forbids."""
        fluents = self.static.domain.fluents
        fixed = [atom for atom in case.positive if atom.predicate not in fluents]
        positive = [atom for atom in case.positive if atom.predicate in fluents]
        negative = [atom for atom in case.negative if atom.predicate in fluents]
        steps: tuple[Step, ...] = plan(fixed, (*variables, *case.variables), (), fluents)
        for inner in self.static.solutions(steps, dict(binding), self.start):
            if self.static.allowed(case, inner):
                yield inner, frozenset(ground(positive, inner)), frozenset(ground(negative, inner))

    def _set_effects(
        self,
        operator: Operator,
        certain: dict[Fact, bool],
        uncertain: list[tuple[frozenset[Fact], frozenset[Fact], Fact, bool]],
    ) -> None:
        """Set the changes of ``operator`` from facts that are added (True) or removed, always or under a condition."""
        add: list[Change] = []
        remove: list[Change] = []
        for fact, added in certain.items():
            (add if added else remove).extend(self._forms(fact, True))
        conditional = []
        for need, forbid, fact, added in uncertain:
            if fact not in certain:
                conditional.append((need, forbid, added, self.change(fact)))
        for fact in {fact for _, _, fact, _ in uncertain if fact not in certain}:
            # TextWorld's text applies every effect on a fact, whether its condition holds or not, removals last.
            is_removed = any(f == fact and not added for _, _, f, added in uncertain)
            (remove if is_removed else add).extend(self._forms(fact, False))
            certain[fact] = not is_removed
        for fact, added in certain.items():
            if fact[0] in self.logic.negated_queries:
                (remove if added else add).append(self.change((f"not_{fact[0]}", *fact[1:])))
        operator.add = tuple(add)
        operator.remove = tuple(remove)
        operator.conditional = tuple(conditional)
        predicates = {fact[0] for fact in certain}
        if operator.leaves_place and self.logic.trigger is not None:
            predicates.add(self.logic.trigger)
        operator.changes_commands = not predicates.isdisjoint(self.logic.governing)
        operator.changes_goal = not predicates.isdisjoint(self.goal_predicates)

    def applicable(self, state: State) -> tuple[Place, dict[str, Operator], list[str]]:
        """The place, command -> operator for everything admissible in ``state``, and the sorted commands."""
        rows = state.slots.get(self.trigger_slot, ())
        if len(rows) == 1:
            index = self.places.get((rows[0], True)) or self.place(rows[0], True)
        else:
            index = self._merged(rows)
        facts = state.facts
        slots = state.slots
        commands = index.free.copy()
        order = index.order.copy()
        # The inner loop of a step. The test of an operator is written twice, because a call for each would cost more
        # than the test.
        for operator in index.checked:
            if operator.need <= facts and operator.forbid.isdisjoint(facts) and operator.command not in commands:
                if operator.universal and not self._universal_holds(operator, state):
                    continue
                commands[operator.command] = operator
                insort(order, operator.command)
        for watch in index.watches:
            # Most slots are empty; the operators of a row are made once.
            rows_of_slot = slots.get(watch.slot)
            if not rows_of_slot or not watch.need <= facts or not watch.forbid.isdisjoint(facts):
                continue
            operators_by_row = watch.operators
            for row in rows_of_slot:
                operators = operators_by_row.get(row)
                if operators is None:
                    operators = self.expand(watch, row, state)
                for operator in operators:
                    if (
                        operator.need <= facts
                        and operator.forbid.isdisjoint(facts)
                        and operator.command not in commands
                    ):
                        if operator.universal and not self._universal_holds(operator, state):
                            continue
                        commands[operator.command] = operator
                        insort(order, operator.command)
        return index, commands, order

    def _universal_holds(self, operator: Operator, state: State) -> bool:
        return all(self.static.holds(formula, operator.binding, state) for formula in operator.universal)

    def _merged(self, rows: tuple[Row, ...]) -> Place:
        """What can be done at several places at once, or at none."""
        merged = Place()
        for index in [self.place(row, False) for row in rows] or [self.everywhere]:
            for command, operator in index.free.items():
                merged.free.setdefault(command, operator)
            merged.checked += index.checked
            merged.watches += index.watches
        merged.order = sorted(merged.free)
        return merged
