"""One game made ready to play: what can be done where, found on first use and kept for all later episodes."""

from __future__ import annotations

import hashlib
from bisect import insort
from collections.abc import Iterable

from gagpo.envs.alfworld.native.formulas import Atom, Case, GameError, Match, PddlProblem, Quantified, Step, cases, plan
from gagpo.envs.alfworld.native.history import can_show
from gagpo.envs.alfworld.native.logic import Branch, Entry, Logic, lookups, mentioned
from gagpo.envs.alfworld.native.narration import SAID, Env
from gagpo.envs.alfworld.native.state import Binding, Fact, Row, Slot, State, StaticFacts, ground, slots_of, unify

Change = tuple[Fact, tuple[Slot, ...], int]  # a fact, its slots, what it weighs in the state key
NO_FACTS: frozenset[Fact] = frozenset()


class Operator:
    """A ground action. What it changes is worked out when it is first carried out (``ready``).

    env: the objects of its parameters, with holes where it is shared between places.
    need, forbid: changing facts that must be true, or false, beyond those it is found by. parts: "for all" conditions.
    """

    __slots__ = (
        "add", "binding", "command", "conditional", "decides", "entry", "env", "forbid", "leaves", "moves", "need",
        "parts", "ready", "remove", "walks",
    )  # fmt: skip

    def __init__(self, entry: Entry, binding: Binding, env: Env, command: str):
        self.entry = entry
        self.binding = binding
        self.command = command
        self.env = env
        self.need: frozenset[Fact] = NO_FACTS
        self.forbid: frozenset[Fact] = NO_FACTS
        self.parts: tuple[Quantified, ...] = ()
        self.ready = False
        self.add: tuple[Change, ...] = ()
        self.remove: tuple[Change, ...] = ()
        self.conditional: tuple[tuple[frozenset[Fact], frozenset[Fact], bool, Change], ...] = ()
        self.leaves = False  # it also removes the fact that made the place
        self.moves = False  # it may change what can be done
        self.walks = False  # it may change the place
        self.decides = False  # it may win or lose the game


class FactWatch:
    """Operators that depend on which rows a slot holds. need, forbid: facts without which the slot need not be read."""

    __slots__ = ("binding", "entry", "forbid", "known", "need", "slot")

    def __init__(self, entry: Entry, binding: Binding, slot: Slot):
        self.entry = entry
        self.binding = binding
        self.slot = slot
        self.need: frozenset[Fact] = NO_FACTS
        self.forbid: frozenset[Fact] = NO_FACTS
        self.known: dict[Row, list[Operator]] = {}


class Place:
    """What can be done where the agent is; ``leaving`` is the change of going away.

    free: command -> operator that needs nothing else. order: its commands, sorted. checked: operators with conditions.
    """

    __slots__ = ("binding", "checked", "free", "leaving", "order", "watches")

    def __init__(self) -> None:
        self.free: dict[str, Operator] = {}
        self.order: list[str] = []
        self.checked: list[Operator] = []
        self.watches: list[FactWatch] = []
        self.leaving: Change | None = None
        self.binding: dict[int, Binding] = {}

    def put(self, operator: Operator) -> None:
        if operator.need or operator.forbid or operator.parts:
            self.checked.append(operator)
        else:
            self.free.setdefault(operator.command, operator)


class SharedOperators:
    """Operators that many places have in common. pointless: fact -> those that only bring about what it says."""

    __slots__ = ("checked", "free", "pointless")

    def __init__(self) -> None:
        self.free: dict[str, Operator] = {}
        self.checked: list[Operator] = []
        self.pointless: dict[Fact, set[Operator]] = {}

    def put(self, operator: Operator, only: Fact | None) -> None:
        if operator.need or operator.forbid or operator.command in self.free:
            self.checked.append(operator)
        else:
            self.free[operator.command] = operator
        if only is not None:
            self.pointless.setdefault(only, set()).add(operator)


class GroundGame:
    """A problem compiled for play. Share it between episodes; nothing of an episode is kept here.

    start: the state in which it begins. salt: number that stands in the state key for all that never changes.
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
        indexed = logic.lookups.union(*[lookups(steps) for _, steps in self.goal])
        self.indexes: dict[str, tuple[tuple[int, ...], ...]] = {}
        for predicate, positions in sorted(indexed):
            self.indexes[predicate] = (*self.indexes.get(predicate, ()), positions)
        self.relevant = self._relevant()
        self.salt = int.from_bytes(hashlib.blake2b(salt, digest_size=16).digest(), "big")
        self._weights: dict[Fact, int] = {}
        self.start = State()
        self.start_key = self.salt
        for fact in sorted(static.initial):
            for each in self._forms(fact, True):
                self.start.insert(each[0], each[1])
                self.start_key ^= each[2]
        self.places: dict[tuple[Row, bool], Place] = {}
        self._shared: dict[tuple[Entry, Row], SharedOperators] = {}
        self.everywhere = Place()
        self._enter(self.everywhere, logic.everywhere, {})
        self.trigger_slot: Slot = (logic.trigger or "", (), ())

    def _relevant(self) -> frozenset[str]:
        """Predicates that play, goal or text depend on; facts of others (``checked``) are as good as absent."""
        logic = self.logic
        found = set(logic.governing) | self.goal_predicates | logic.mentioned | logic.denied
        size = -1
        while size != len(found):
            size = len(found)
            for schema in logic.schemas:
                for outcome in schema.outcomes:
                    if outcome.literal.predicate in found:
                        found = found.union(*[mentioned(case) for case in outcome.cases])
        return frozenset(found & logic.domain.fluents)

    # Facts ------------------------------------------------------------------------------------------------------------

    def change(self, fact: Fact) -> Change:
        """A change of ``fact``. Traces of the past that can never show weigh nothing."""
        weight = self._weights.get(fact)
        if weight is None:
            digest = hashlib.blake2b(" ".join(fact).encode(), digest_size=16).digest()
            weight = int.from_bytes(digest, "big")
            undone = (fact[0][4:], *fact[1:])
            if fact[0] not in self.relevant and undone[0] in self.logic.denied:
                weight *= can_show(self.logic, self.static, undone)
            self._weights[fact] = weight
        return fact, slots_of(fact, self.indexes), weight

    def _forms(self, fact: Fact, planned: bool) -> list[Change]:
        """A fact as the planner knows it (where ``planned``) and, where that may differ, as the text does."""
        if fact[0] not in self.relevant:
            return []
        forms = [fact] if planned else []
        if fact[0] in self.logic.apart and fact[0] in self.logic.mentioned:
            forms.append((fact[0] + SAID, *fact[1:]))
        return [self.change(form) for form in forms]

    def won(self, state: State) -> bool:
        return any(self.static.case_holds(case, steps, {}, state) for case, steps in self.goal)

    # Places -----------------------------------------------------------------------------------------------------------

    def place(self, row: Row, alone: bool) -> Place:
        """What can be done where the trigger's fact with ``row`` is true; ``alone``: no other such fact is."""
        place = self.places.get((row, alone))
        if place is None:
            place = self.places[row, alone] = Place()
            place.free.update(self.everywhere.free)
            place.watches += self.everywhere.watches
            place.checked += self.everywhere.checked
            place.leaving = self.change((self.logic.trigger or "", *row))
            for tree in self.logic.trees:
                # Where there is one place alone, what differs from place to place in the leaving only is shared.
                binding = unify(tree.trigger, row, tree.types, self.static)
                if binding is not None:
                    self._enter(place, tree.root, binding)
                    if alone:
                        for entry in tree.shared:
                            self._enter_shared(place, entry, binding)
                    else:
                        self._enter(place, tree.separate, binding)
            place.order = sorted(place.free)
        return place

    def _enter(self, place: Place, branch: Branch, binding: Binding) -> None:
        """Follow ``branch`` as far as facts that never change lead, and put what is found into ``place``."""
        for entry in branch.entries:
            # Without a guard the action is complete; with one it waits for rows of the guard's slot.
            if entry.restricted and not self._permitted(entry.before_bans, binding):
                continue
            guard = entry.guard
            if guard is None:
                operator = self.operator(entry, binding)
                if operator is not None:
                    place.put(operator)
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

    def _enter_shared(self, place: Place, entry: Entry, begun: Binding) -> None:
        """Enter operators that differ between places only in where the agent leaves from."""
        tight = {name: value for name, value in begun.items() if name not in entry.loose}
        name = (entry, tuple(tight.values()))
        shared = self._shared.get(name)
        if shared is None:
            shared = self._shared[name] = SharedOperators()
            for binding in self.static.solutions(entry.before, tight, self.start):
                operator = self.operator(entry, binding)
                if operator is not None:
                    shared.put(operator, self._only_effect(operator))
        assert place.leaving is not None
        pointless = shared.pointless.get(place.leaving[0], ())
        place.free = shared.free | place.free
        for operator in pointless:
            if place.free.get(operator.command) is operator:
                del place.free[operator.command]
        place.checked += [operator for operator in shared.checked if operator not in pointless]
        place.binding[id(entry)] = begun

    def _only_effect(self, operator: Operator) -> Fact | None:
        """The one fact a shared operator adds, where it does nothing else but to remove its trigger."""
        entry = operator.entry
        literals = [outcome.literal for outcome in entry.schema.outcomes]
        added = set(ground([literal for literal in literals if not literal.negated], operator.binding))
        added -= set(ground(entry.fluent_positive, operator.binding))
        others = [literal for literal in literals if literal.negated and literal.negation != entry.trigger]
        return added.pop() if len(added) == 1 and not others else None

    def expand(self, watch: FactWatch, row: Row, state: State) -> list[Operator]:
        """The operators of a watch for one row of its slot."""
        entry = watch.entry
        guard = entry.guard
        assert isinstance(guard, Match)
        found: list[Operator] = []
        binding = dict(watch.binding)
        for position, variable, kind in guard.fresh:
            if row[position] not in self.static.members.get(kind, ()):
                break
            binding[variable] = row[position]
        else:
            if all(row[a] == row[b] for a, b in guard.repeated):
                for full in self.static.solutions(entry.after, binding, state):
                    operator = self.operator(entry, full)
                    if operator is not None:
                        found.append(operator)
        if entry.static_after or not any(True for _ in self.static.solutions(entry.after_fixed, binding, state)):
            watch.known[row] = found
        return found

    def operator(self, entry: Entry, binding: Binding) -> Operator | None:
        """The operator of a complete binding, or None where what never changes rules it out."""
        if entry.restricted and not self.static.allowed(entry.case, binding):
            return None
        bare = entry.loose and not entry.loose & binding.keys()
        if entry.doubtful and not bare and not self._does_something(entry, binding):
            return None
        schema = entry.schema
        env = tuple([self.static.cast(binding.get(name, ""), kind) for name, kind in schema.action.parameters])
        operator = Operator(entry, binding.copy(), env, schema.command.tell(env, self.static, self.start))
        if entry.need:
            operator.need = frozenset(ground(entry.need, binding))
        if entry.fluent_negative:
            operator.forbid = frozenset(ground(entry.fluent_negative, binding))
        operator.parts = entry.case.universal
        operator.leaves = bool(bare)
        return operator

    def _does_something(self, entry: Entry, binding: Binding) -> bool:
        """Whether the planner keeps this action: it drops those whose every effect is already a precondition."""
        given = set(ground(entry.fluent_positive, binding))
        missing = set(ground(entry.fluent_negative, binding))
        added: set[Fact] = set()
        removed: set[Fact] = set()
        for outcome in entry.schema.outcomes:
            if outcome.variables or not outcome.always:
                return True
            (removed if outcome.literal.negated else added).update(ground((outcome.literal,), binding))
        return bool(added - given or removed - added - missing)

    # What operators do ------------------------------------------------------------------------------------------------

    def prepare(self, operator: Operator) -> None:
        """Work out what ``operator`` changes."""
        entry, binding = operator.entry, operator.binding
        given = ground(entry.fluent_positive, binding)
        missing = ground(entry.fluent_negative, binding)
        sure: dict[Fact, bool] = {}  # added (True) or removed whatever else is true
        unsure: list[tuple[frozenset[Fact], frozenset[Fact], Fact, bool]] = []
        for outcome in entry.schema.outcomes:
            literal = outcome.literal
            if literal.predicate not in self.relevant or (operator.leaves and literal.negation == entry.trigger):
                continue
            ignored = missing if literal.negated else given  # the planner drops what a precondition says already
            if outcome.always and not outcome.variables:
                fact = (literal.predicate, *[binding.get(name, name) for name in literal.args])
                if fact not in ignored:
                    sure[fact] = sure.get(fact, False) or not literal.negated
                continue
            for condition in outcome.cases:
                for inner, need, forbid in self._conditions(condition, outcome.variables, binding):
                    # What hangs on facts that change is decided when the action is carried out.
                    fact = (literal.predicate, *[inner.get(name, name) for name in literal.args])
                    if fact in ignored:
                        continue
                    if need or forbid:
                        unsure.append((need, forbid, fact, not literal.negated))
                    else:
                        sure[fact] = sure.get(fact, False) or not literal.negated
        self._settle(operator, sure, unsure)
        operator.ready = True

    def _conditions(
        self, case: Case, variables: tuple[tuple[str, str], ...], binding: Binding
    ) -> Iterable[tuple[Binding, frozenset[Fact], frozenset[Fact]]]:
        """Bindings of an effect's variables that facts that never change allow, with the changing facts it hangs on."""
        fluents = self.static.domain.fluents
        fixed = [atom for atom in case.positive if atom.predicate not in fluents]
        positive = [atom for atom in case.positive if atom.predicate in fluents]
        negative = [atom for atom in case.negative if atom.predicate in fluents]
        steps: tuple[Step, ...] = plan(fixed, (*variables, *case.variables), (), fluents)
        for inner in self.static.solutions(steps, dict(binding), self.start):
            if self.static.allowed(case, inner):
                yield inner, frozenset(ground(positive, inner)), frozenset(ground(negative, inner))

    def _settle(
        self,
        operator: Operator,
        sure: dict[Fact, bool],
        unsure: list[tuple[frozenset[Fact], frozenset[Fact], Fact, bool]],
    ) -> None:
        add: list[Change] = []
        remove: list[Change] = []
        for fact, added in sure.items():
            (add if added else remove).extend(self._forms(fact, True))
        conditional = []
        for need, forbid, fact, added in unsure:
            if fact not in sure:
                conditional.append((need, forbid, added, self.change(fact)))
        for fact in {fact for _, _, fact, _ in unsure if fact not in sure}:
            # Text hears of every effect that is listed for a fact, whether it happens or not, of removals last.
            gone = any(f == fact and not added for _, _, f, added in unsure)
            (remove if gone else add).extend(self._forms(fact, False))
            sure[fact] = not gone
        for fact, added in sure.items():
            if fact[0] in self.logic.denied:
                (remove if added else add).append(self.change((f"not_{fact[0]}", *fact[1:])))
        operator.add, operator.remove = tuple(add), tuple(remove)
        operator.conditional = tuple(conditional)
        touched = {fact[0] for fact in sure} | ({self.logic.trigger} if operator.leaves else set())
        operator.moves = not touched.isdisjoint(self.logic.governing)
        operator.walks = self.logic.trigger in touched
        operator.decides = not touched.isdisjoint(self.goal_predicates)

    def applicable(self, state: State) -> tuple[Place, dict[str, Operator], list[str]]:
        """The place, command -> operator for all that can be done in ``state``, and the sorted commands."""
        rows = state.slots.get(self.trigger_slot, ())
        if len(rows) == 1:
            place = self.places.get((rows[0], True)) or self.place(rows[0], True)
        else:
            place = self._merged(rows)
        facts, slots = state.facts, state.slots
        found = place.free.copy()
        order = place.order.copy()
        for operator in place.checked:
            if operator.need <= facts and operator.forbid.isdisjoint(facts) and operator.command not in found:
                if operator.parts and not self._parts_hold(operator, state):
                    continue
                found[operator.command] = operator
                insort(order, operator.command)
        for watch in place.watches:
            # Most watches hold no row now; operators for a row are made once and then only looked at.
            held = slots.get(watch.slot)
            if not held or not watch.need <= facts or not watch.forbid.isdisjoint(facts):
                continue
            known = watch.known
            for row in held:
                operators = known.get(row)
                if operators is None:
                    operators = self.expand(watch, row, state)
                for operator in operators:
                    if operator.need <= facts and operator.forbid.isdisjoint(facts) and operator.command not in found:
                        if operator.parts and not self._parts_hold(operator, state):
                            continue
                        found[operator.command] = operator
                        insort(order, operator.command)
        return place, found, order

    def _parts_hold(self, operator: Operator, state: State) -> bool:
        return all(self.static.holds(part, operator.binding, state) for part in operator.parts)

    def _merged(self, rows: tuple[Row, ...]) -> Place:
        """What can be done with no place or with several at once."""
        merged = Place()
        for place in [self.place(row, False) for row in rows] or [self.everywhere]:
            # The first place that offers a command is the one that answers it.
            for command, operator in place.free.items():
                merged.free.setdefault(command, operator)
            merged.checked += place.checked
            merged.watches += place.watches
        merged.order = sorted(merged.free)
        return merged
