"""One game made ready to play: numbered facts, actions found by where the agent is, and their effects.

Nothing here changes during an episode; what is worked out on first use (a place, a text) is kept for all later ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from envs.alfworld.grammar import Entity, Placeholder
from envs.alfworld.logic import Case, Logic, Schema, Step, cases, plan
from envs.alfworld.narration import Facts, Narrator, Teller
from envs.alfworld.pddl import Atom, Formula, GameError, Junction, Problem, Quantified
from envs.alfworld.world import Binding, Row, World, unify

MAX_GOALS = 20_000  # ways in which a goal can be met; a generated one has at most some hundred

# What can be true of a fact, as offsets to its number. SAID and TRUE are one but for conditional effects, of which
# TextWorld's text hears even where their condition fails.
TRUE, FALSE, SAID, DENIED = range(4)


class Operator:
    """A ground action. ``changes`` and ``feedback`` are filled in when it is first carried out."""

    __slots__ = ("add", "binding", "case", "command", "conditional", "decides", "feedback", "moves", "remove", "schema")

    def __init__(self, command: str, schema: Schema, case: Case, binding: Binding):
        self.command = command
        self.schema = schema
        self.case = case
        self.binding = binding
        self.feedback: str | Teller | None = None
        self.remove: tuple[int, ...] = ()
        self.add: tuple[int, ...] = ()
        self.conditional: tuple[tuple[frozenset[int], tuple[int, ...], tuple[int, ...]], ...] = ()
        self.moves = False  # may change which commands there are
        self.decides = False  # may change whether the game is won


class Place:
    """What can be done where one fact (the agent's place) is true.

    free: command -> operator, nothing else needed. guarded: literal -> operators with the rest of what they need.
    """

    __slots__ = ("free", "guarded", "guards")

    def __init__(self) -> None:
        self.free: dict[str, Operator] = {}
        self.guarded: dict[int, list[tuple[frozenset[int], Operator]]] = {}
        self.guards: frozenset[int] = frozenset()

    def put(self, guard: int | None, rest: frozenset[int], operator: Operator) -> None:
        if guard is None:
            self.free.setdefault(operator.command, operator)
        else:
            self.guarded.setdefault(guard, []).append((rest, operator))

    def finish(self) -> None:
        self.free = dict(sorted(self.free.items()))
        self.guards = frozenset(self.guarded)


class _Entry:
    """One case of one schema, found through ``trigger`` (None: always looked at)."""

    __slots__ = ("case", "schema", "steps", "trigger", "types")

    def __init__(self, schema: Schema, case: Case, trigger: Atom | None, fluents: frozenset[str]):
        self.schema = schema
        self.case = case
        self.trigger = trigger
        variables = (*schema.action.parameters, *case.variables)
        self.types = dict(variables)
        atoms = list(case.positive)
        if trigger is not None:
            atoms.remove(trigger)
        self.steps: tuple[Step, ...] = plan(atoms, variables, trigger.args if trigger else (), fluents)


class Game:
    """A problem compiled for play. Share it between episodes; it holds no state of any of them.

    start: literals true at the beginning. salt: number that stands for all that never changes in the state key.
    """

    def __init__(self, logic: Logic, problem: Problem, task: str, salt: bytes):
        world = World(logic, problem)
        world.explore()
        self.world = world
        self.logic = logic
        self.task = task
        self.salt = int.from_bytes(hashlib.blake2b(salt, digest_size=16).digest(), "big")
        self._number_facts(problem.goal)
        self.narrator = Narrator(world, entities(problem), self)
        self.triggers: dict[str, list[_Entry]] = {}
        self._always: list[_Entry] = []
        self._enter_schemas()
        self._weights: dict[int, int] = {}
        self._tellers: dict[tuple[str, bool], list[_Told]] = {}
        self.places: dict[int, Place | None] = {}
        for predicate in self.triggers:
            for row in world.rows.get(predicate, ()):
                self.places[self.true((predicate, *row))] = None
        self.everywhere = Place()
        for entry in self._always:
            self._ground(entry, {}, None, self.everywhere)
        self.everywhere.finish()
        self.goals = self._ground_goal(problem.goal)
        self.goal_literals = frozenset(literal for goal in self.goals for literal in goal)
        self.start = frozenset(self._initial())

    # Facts as numbers -------------------------------------------------------------------------------------------------

    def _number_facts(self, goal: Formula) -> None:
        """Number the facts that play, goal or text depend on; the rest (``checked``) is as good as absent."""
        asked: set[str] = set()
        refused: set[str] = set()
        for schema in self.logic.schemas:
            for case in schema.cases:
                _mentioned(case, asked, refused)
        self.governing = frozenset(asked)  # predicates that preconditions ask for
        for case in cases(goal):
            _mentioned(case, asked, refused)
        told = self.logic.told
        size = -1
        while size != len(asked):
            size = len(asked)
            for schema in self.logic.schemas:
                for outcome in schema.outcomes:
                    if outcome.literal.predicate in asked | told | {name.removeprefix("not_") for name in told}:
                        for case in outcome.cases:
                            _mentioned(case, asked, refused)
        fluents = self.world.fluents
        self.asked = asked & fluents
        self.refused = refused & fluents
        self.told = told & fluents
        self.denied_predicates = frozenset(
            name[4:] for name in told if name not in self.logic.domain.predicates and name.startswith("not_")
        )
        self.apart = self.told & self.logic.conditional  # text and planner may disagree about these
        names = sorted(self.asked | self.told | (self.denied_predicates & fluents))
        facts = [(name, *row) for name in names for row in sorted(self.world.rows.get(name, ()))]
        self.numbers = {fact: 4 * i for i, fact in enumerate(facts)}
        self.facts = facts

    def true(self, fact: Row) -> int:
        return self.numbers[fact] + TRUE

    def said(self, fact: Row) -> int:
        return self.numbers[fact] + (SAID if fact[0] in self.apart else TRUE)

    def denied(self, fact: Row) -> int:
        return self.numbers[fact] + DENIED

    def _initial(self) -> Iterator[int]:
        for fact, number in self.numbers.items():
            if fact in self.world.initial:
                yield number + TRUE
                if fact[0] in self.apart:
                    yield number + SAID
            elif fact[0] in self.refused:
                yield number + FALSE

    def weight(self, literal: int) -> int:
        """128 bits that stand for a literal in the state key; 0 for what follows from another."""
        if literal & 3 == FALSE:
            return 0
        found = self._weights.get(literal)
        if found is None:
            text = f"{literal & 3}({' '.join(self.facts[literal >> 2])})"
            found = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")
            self._weights[literal] = found
        return found

    def key(self, facts: Iterable[int]) -> int:
        """The state key of a set of true literals."""
        key = self.salt
        for literal in facts:
            key ^= self.weight(literal)
        return key

    # Operators --------------------------------------------------------------------------------------------------------

    def _enter_schemas(self) -> None:
        fluents = self.world.fluents
        for schema in self.logic.schemas:
            for case in schema.cases:
                candidates = [atom for atom in case.positive if atom.predicate in fluents]
                preferred = [atom for atom in candidates if atom.predicate == self.logic.trigger]
                trigger = (preferred or candidates or [None])[0]
                entry = _Entry(schema, case, trigger, fluents)
                if trigger is None:
                    self._always.append(entry)
                else:
                    self.triggers.setdefault(trigger.predicate, []).append(entry)

    def place(self, literal: int) -> Place:
        """What can be done where the fact behind ``literal`` is true."""
        place = self.places[literal]
        if place is None:
            place = Place()
            predicate, *row = self.facts[literal >> 2]
            for entry in self.triggers[predicate]:
                assert entry.trigger is not None
                binding = unify(entry.trigger, tuple(row), entry.types, self.world)
                if binding is not None:
                    self._ground(entry, binding, literal, place)
            place.finish()
            self.places[literal] = place
        return place

    def _ground(self, entry: _Entry, begun: Binding, trigger: int | None, place: Place) -> None:
        world = self.world
        for binding in world.bindings(entry.steps, begun):
            if not world.allowed(entry.case, binding):
                continue
            needs = self._literals(entry.case, binding)
            if needs is None:
                continue
            if not self._does_something(entry, binding):
                continue
            arguments = {name: binding[name] for name, _ in entry.schema.action.parameters}
            operator = Operator(self._command(entry.schema, arguments), entry.schema, entry.case, dict(binding))
            for more in self._universal(entry.case.universal, binding):
                rest = (needs | more) - {trigger}
                guard = self._guard(rest)
                place.put(guard, rest - {guard}, operator)

    def _guard(self, literals: frozenset[int]) -> int | None:
        """The literal least likely to be true: the rest need only be looked at where it is."""
        return max(literals, key=self._rarity, default=None)

    def _rarity(self, literal: int) -> tuple[bool, int, int]:
        return literal & 3 == TRUE, len(self.world.rows[self.facts[literal >> 2][0]]), literal

    def _literals(self, case: Case, binding: Binding) -> frozenset[int] | None:
        """What must be true for ``case``, fixed facts aside (they are known to be right); None if it cannot be."""
        found = set()
        for atom in case.positive:
            if atom.predicate in self.world.fluents:
                found.add(self.true((atom.predicate, *[binding.get(name, name) for name in atom.args])))
        for atom in case.negative:
            if atom.predicate in self.world.fluents:
                fact = (atom.predicate, *[binding.get(name, name) for name in atom.args])
                if self.world.possible(fact):
                    found.add(self.numbers[fact] + FALSE)
        if any(literal ^ 1 in found for literal in found):
            return None
        return frozenset(found)

    def _does_something(self, entry: _Entry, binding: Binding) -> bool:
        """Whether the planner keeps this action: it drops those whose every effect is already a precondition."""
        given = _facts(entry.case.positive, binding)
        missing = _facts(entry.case.negative, binding)
        added = set()
        for outcome in entry.schema.outcomes:
            if outcome.variables or not outcome.always:
                return True
            if not outcome.literal.negated:
                added |= _facts((outcome.literal,), binding)
        if added - given:
            return True
        removed = set().union(*[_facts((o.literal,), binding) for o in entry.schema.outcomes if o.literal.negated])
        return any(self.world.possible(fact) for fact in removed - added - missing)

    def _command(self, schema: Schema, arguments: Binding) -> str:
        text = self._told(schema, arguments, True)
        if not isinstance(text, str):
            raise GameError(f"grammar: action {schema.action.name}: the command depends on facts that change")
        return text

    def _told(self, schema: Schema, arguments: Binding, command: bool) -> str | Teller:
        """Command or feedback of an action; told once for all arguments that make no difference to it."""
        name = schema.action.name
        known = self._tellers.setdefault((name, command), [])
        for told in known:
            if all(arguments[n] == v for n, v in told.touched) and told.met.isdisjoint(
                [v for n, v in arguments.items() if (n, v) not in told.touched]
            ):
                return told.teller
        types = dict(schema.action.parameters)
        mapping: dict[Placeholder, str] = {(n.strip("?"), types[n]): v for n, v in arguments.items()}
        symbols = schema.wording.command if command else schema.wording.feedback
        try:
            teller = self.narrator.tell(symbols, mapping)
        except GameError as error:
            raise error.inside(f"action {name}") from None
        touched = frozenset((f"?{n}", mapping[n, t]) for n, t in self.narrator.touched if (n, t) in mapping)
        known.append(_Told(touched, frozenset(self.narrator.met), teller))
        return teller

    def intro(self) -> str:
        """The first observation."""
        from envs.alfworld.grammar import Call
        from envs.alfworld.logic import TASK

        teller = self.narrator.tell((Call("intro"),), {})
        text = teller if isinstance(teller, str) else teller(set(self.start))
        return text.replace(TASK, self.task)

    def complete(self, operator: Operator) -> str | Teller:
        """Work out an operator's effects and feedback."""
        schema, case, binding = operator.schema, operator.case, operator.binding
        given = _facts(case.positive, binding)
        missing = _facts(case.negative, binding)
        sure: dict[Row, bool] = {}  # fact -> added (True) or removed by an effect that always happens
        unsure: list[tuple[frozenset[int], Row, bool]] = []
        for outcome in schema.outcomes:
            literal = outcome.literal
            if literal.predicate not in self.asked | self.told | self.denied_predicates:
                continue
            for condition in outcome.cases:
                variables = (*outcome.variables, *condition.variables)
                steps = plan(condition.positive, variables, (), self.world.fluents)
                for inner in self.world.bindings(steps, dict(binding)):
                    needs = self._literals(condition, inner) if self.world.allowed(condition, inner) else None
                    if needs is None:
                        continue
                    fact = (literal.predicate, *[inner.get(name, name) for name in literal.args])
                    if fact in (missing if literal.negated else given) or not self.world.possible(fact):
                        continue
                    if needs:
                        unsure.append((needs, fact, not literal.negated))
                    else:
                        sure[fact] = sure.get(fact, False) or not literal.negated
        self._settle(operator, sure, unsure)
        arguments = {name: binding[name] for name, _ in schema.action.parameters}
        operator.feedback = self._told(schema, arguments, False)
        return operator.feedback

    def _settle(
        self, operator: Operator, sure: dict[Row, bool], unsure: list[tuple[frozenset[int], Row, bool]]
    ) -> None:
        add: set[int] = set()
        remove: set[int] = set()
        conditional = []
        for fact, added in sure.items():
            for literal, becomes in self._switched(fact, added):
                (add if becomes else remove).add(literal)
        for needs, fact, added in unsure:
            if sure.get(fact) is True or (not added and sure.get(fact) is False):
                continue
            ons = tuple(literal for literal, becomes in self._planner(fact, added) if becomes)
            offs = tuple(literal for literal, becomes in self._planner(fact, added) if not becomes)
            conditional.append((needs, offs, ons))
        for fact in {fact for _, fact, _ in unsure if sure.get(fact) is not True}:
            # The text hears of every effect listed for a fact, removals last.
            removed = sure.get(fact) is False or any(f == fact and not added for _, f, added in unsure)
            for literal, becomes in self._text(fact, not removed):
                (add if becomes else remove).add(literal)
        operator.add = tuple(sorted(add))
        operator.remove = tuple(sorted(remove - add))
        # Removals first, so that an addition of the same fact has the last word.
        operator.conditional = tuple(sorted(conditional, key=lambda entry: bool(entry[2])))
        touched = {fact[0] for fact in sure} | {fact[0] for _, fact, _ in unsure}
        literals = add | remove | {literal for _, offs, ons in conditional for literal in (*offs, *ons)}
        operator.moves = bool(touched & self.governing)
        operator.decides = not literals.isdisjoint(self.goal_literals)

    def _switched(self, fact: Row, added: bool) -> Iterator[tuple[int, bool]]:
        yield from self._planner(fact, added)
        yield from self._text(fact, added)

    def _planner(self, fact: Row, added: bool) -> Iterator[tuple[int, bool]]:
        number = self.numbers[fact]
        yield number + TRUE, added
        if fact[0] in self.refused:
            yield number + FALSE, not added

    def _text(self, fact: Row, added: bool) -> Iterator[tuple[int, bool]]:
        number = self.numbers[fact]
        if fact[0] in self.apart:
            yield number + SAID, added
        if fact[0] in self.denied_predicates:
            yield number + DENIED, not added

    # Quantified conditions --------------------------------------------------------------------------------------------

    def _universal(self, parts: tuple[Quantified, ...], binding: Binding) -> list[frozenset[int]]:
        """Conjunctions of literals any of which makes all of ``parts`` true."""
        found: list[frozenset[int]] = [frozenset()]
        for part in parts:
            found = self._both(found, self._alternatives(part, binding))
        return found

    def _alternatives(self, formula: Formula, binding: Binding) -> list[frozenset[int]]:
        """Conjunctions of literals any of which makes ``formula`` true."""
        if (
            isinstance(formula, Junction)
            and formula.conjunctive
            or isinstance(formula, Quantified)
            and formula.universal
        ):
            found: list[frozenset[int]] = [frozenset()]
            for part, inner in self._parts(formula, binding):
                found = self._both(found, self._alternatives(part, inner))
            return found
        alternatives: dict[frozenset[int], None] = {}
        for case in cases(formula):
            steps = plan(case.positive, case.variables, (), self.world.fluents)
            for inner in self.world.bindings(steps, dict(binding)):
                needs = self._literals(case, inner) if self.world.allowed(case, inner) else None
                if needs is not None:
                    for more in self._universal(case.universal, inner):
                        alternatives[needs | more] = None
                        if len(alternatives) > MAX_GOALS:
                            raise GameError(f"a condition can be met in more than {MAX_GOALS:,} ways")
        return [frozenset()] if frozenset() in alternatives else list(alternatives)

    def _parts(self, formula: Formula, binding: Binding) -> Iterator[tuple[Formula, Binding]]:
        if isinstance(formula, Junction):
            for part in formula.parts:
                yield part, binding
        elif isinstance(formula, Quantified):
            for inner in self.world.bindings(plan((), formula.variables, (), frozenset()), dict(binding)):
                yield formula.part, dict(inner)

    def _both(self, left: list[frozenset[int]], right: list[frozenset[int]]) -> list[frozenset[int]]:
        if len(left) * len(right) > MAX_GOALS:
            raise GameError(f"a condition can be met in more than {MAX_GOALS:,} ways")
        return list({a | b: None for a in left for b in right if not any(x ^ 1 in b and x & 2 == 0 for x in a)})

    def _ground_goal(self, goal: Formula) -> tuple[frozenset[int], ...]:
        goals = self._alternatives(goal, {})
        if not goals:
            raise GameError("pddl_problem: :goal: no action can ever reach it")
        if frozenset() in goals:
            raise GameError("pddl_problem: :goal: it is met whatever happens")
        return tuple(sorted(goals, key=sorted))

    def won(self, facts: Facts) -> bool:
        return any(goal <= facts for goal in self.goals)


class _Told:
    __slots__ = ("met", "teller", "touched")

    def __init__(self, touched: frozenset[tuple[str, str]], met: frozenset[str], teller: str | Teller):
        self.touched = touched
        self.met = met
        self.teller = teller


def _facts(atoms: Iterable[Atom], binding: Binding) -> set[Row]:
    return {(atom.predicate, *[binding.get(name, name) for name in atom.args]) for atom in atoms}


def _mentioned(case: Case, asked: set[str], refused: set[str]) -> None:
    """Collect the predicates of a case, and those it wants false."""
    asked |= {atom.predicate for atom in (*case.positive, *case.negative)}
    refused |= {atom.predicate for atom in case.negative}
    for part in case.universal:
        for inner in cases(part.part):
            _mentioned(inner, asked, refused)


def entities(problem: Problem) -> dict[str, Entity]:
    """What the text calls objects: ``cup_bar_...`` is ``cup 2``.

    Objects of one kind are numbered from the last in alphabetical order; those named in no fact do not count.
    """
    ids = sorted({name for _, *row in problem.facts for name in row} | set(problem.measured))
    kinds: dict[str, str] = {}
    left: dict[str, int] = {}
    for name in ids:
        if "_bar_" in name:
            kinds[name] = _plain(name).split("|", 1)[0] + ("basin" if "basin" in name else "")
            left[kinds[name]] = left.get(kinds[name], 0) + 1
    found = {}
    for name in ids:
        number = ""
        if name in kinds:
            number = str(left[kinds[name]])
            left[kinds[name]] -= 1
        found[name] = Entity(name, problem.objects.get(name, "object"), f"{kinds.get(name, _plain(name))} {number}")
    return found


def _plain(name: str) -> str:
    for word, mark in (("_bar_", "|"), ("_minus_", "-"), ("_plus_", "+"), ("_dot_", "."), ("_comma_", ",")):
        name = name.replace(word, mark)
    return name
