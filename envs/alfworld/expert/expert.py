"""A scripted policy that reads only what an agent sees.

It observes every turn, including those of an agent, so it can take over in any situation. An imperfect expert skips
steps of the task: it delivers objects untreated, brings one object where the task asks for two, and turns on the lamp
with empty hands. An orderly expert searches type by type in the order of the room's description, which takes about as
many turns as searching the most promising place first and is much easier to imitate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gagpo.envs.alfworld.engine import NOTHING_HAPPENS
from gagpo.envs.alfworld.expert.goal import HouseholdGoal, read_goal
from gagpo.envs.alfworld.expert.memory import Memory, kind_of
from gagpo.envs.alfworld.expert.places import PLACE_FREQUENCIES
from gagpo.envs.alfworld.games.catalogue import USUAL_PLACES

_USUAL = {thing.lower(): tuple(place.lower() for place in places) for thing, places in USUAL_PLACES.items()}
_RARE = 2  # per mille, for a type of object that was never counted in a type of receptacle
_ALREADY_THERE = 0.25  # weight of receptacles of the target type in a search
_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_OPENABLE = {"fridge", "cabinet", "microwave", "drawer", "safe", "box"}


class Expert:
    """A scripted policy for one episode.

    introduction: the first observation.
    admissible: the admissible commands, if the agent sees them.

    >>> expert = Expert("Looking around, you see a desk 1, and a shelf 1. Your task is to: put some pen on shelf.")
    >>> expert.next_action()
    'go to desk 1'
    """

    def __init__(
        self, introduction: str, admissible: Sequence[str] | None = None, imperfect: bool = False, orderly: bool = False
    ):
        self.memory = Memory(introduction)
        self.goal = read_goal(self.memory.task, {kind_of(name) for name in self.memory.receptacles})
        self._admissible = None if admissible is None else set(admissible)
        self._old_verb = False  # games before 0.4: "put mug 1 in/on shelf 1", and "You arrive at loc 12."
        self._pending_put = ""  # a command to put something down that was not answered yet
        self._imperfect = imperfect
        self._orderly = orderly
        # Whether objects to be treated may lie in the target type; if not, an orderly search visits that type last.
        self.objects_in_target = False
        self.finished = False  # an imperfect expert stops here, solved or not

    @property
    def has_goal(self) -> bool:
        """Whether the task text could be parsed; if not, the expert only looks around."""
        return self.goal is not None

    def observe(self, action: str, observation: str, admissible: Sequence[str] | None = None) -> None:
        """Record one turn; ``admissible`` are the admissible commands, if the agent sees them."""
        self._admissible = None if admissible is None else set(admissible)
        if observation == NOTHING_HAPPENS and action == self._pending_put:
            self._old_verb = not self._old_verb
        elif observation != NOTHING_HAPPENS and action.startswith(("move ", "put ")):
            self._old_verb = action.startswith("put ")
        self._old_verb |= observation.startswith("You arrive at loc ")
        self._pending_put = ""
        self.memory.update(action, observation, admissible)
        if self._imperfect and observation != NOTHING_HAPPENS and self.goal is not None:
            self.finished = self.finished or self._finishes(action, self.goal)

    def next_action(self) -> str | None:
        """The next action: ``look`` if nothing better is possible, None after the last step of an imperfect expert."""
        if self.finished:
            return None
        action = "look" if self.goal is None else self._pursue(self.goal)
        if self._admissible is None or action in self._admissible:
            return action
        return "look"

    def _pursue(self, goal: HouseholdGoal) -> str:
        memory = self.memory
        if memory.holding:
            if kind_of(memory.holding) == goal.object_type:
                return self._use_held(goal, memory.holding)
            return self._clear_hands()
        if self._imperfect and goal.operation == "light":
            return self._light(goal)
        delivered = self._delivered(goal)
        candidates = [name for name in memory.objects_of(goal.object_type) if name not in delivered]
        if goal.operation in _TOOLS:
            candidates.sort(key=lambda name: goal.operation not in memory.operations.get(name, ()))
        candidates.sort(key=lambda name: memory.place_of(name) not in memory.here)
        if candidates:
            receptacle = memory.place_of(candidates[0])
            return self._reach(receptacle) or f"take {candidates[0]} from {receptacle}"
        # If the task is only to deliver one object, an object in a target receptacle would have ended it already.
        only_delivery = not goal.operation and goal.count == 1
        return self._search(goal.object_type, {goal.target: 0.0 if only_delivery else _ALREADY_THERE})

    # With the wanted object in hand -----------------------------------------------------------------------------------

    def _use_held(self, goal: HouseholdGoal, object_name: str) -> str:
        memory = self.memory
        if goal.operation == "light":
            return self._light(goal)
        if (
            not self._imperfect
            and goal.operation in _TOOLS
            and goal.operation not in memory.operations.get(object_name, ())
        ):
            tool = next((name for name in reversed(memory.receptacles) if kind_of(name) == _TOOLS[goal.operation]), "")
            if not tool:
                return "look"  # the room lacks the appliance, so the task cannot be solved
            return self._reach(tool, open_it=False) or f"{goal.operation} {object_name} with {tool}"
        return self._put_down(self._target(goal))

    def _light(self, goal: HouseholdGoal) -> str:
        lamps = [name for lamp_type in _lamp_kinds(goal) for name in self.memory.objects_of(lamp_type)]
        if not lamps:
            return self._search(_lamp_kinds(goal)[0])
        return self._reach(self.memory.place_of(lamps[0]), open_it=False) or f"use {lamps[0]}"

    def _finishes(self, action: str, goal: HouseholdGoal) -> bool:
        """Whether ``action``, which had an effect, looks like the last one to an imperfect expert."""
        if goal.operation == "light":
            return action.startswith("use ")
        delivery = re.fullmatch(r"(?:move|put) (\S+) \d+ (?:to|in/on) (\S+) \d+", action)
        return delivery is not None and delivery.groups() == (goal.object_type, goal.target)

    def _target(self, goal: HouseholdGoal) -> str:
        """The receptacle to deliver to: the one of the target type with most wanted objects, then one within reach."""
        memory = self.memory
        targets = [name for name in reversed(memory.receptacles) if kind_of(name) == goal.target]

        def delivered(name: str) -> int:
            return sum(kind_of(item) == goal.object_type for item in memory.contents[name])

        best: str = max(
            targets, key=lambda name: (delivered(name), name in memory.here, memory.is_closed[name] is False)
        )
        return best

    def _delivered(self, goal: HouseholdGoal) -> set[str]:
        """Objects of the wanted type that should stay where they are."""
        if goal.count == 1:
            return set()
        return {item for item in self.memory.contents[self._target(goal)] if kind_of(item) == goal.object_type}

    def _clear_hands(self) -> str:
        """Put down an object that is not wanted: anywhere admissible, or where it came from."""
        object_name = self.memory.holding
        for command in sorted(self._admissible or ()):
            if command.startswith((f"move {object_name} to ", f"put {object_name} in/on ")):
                return command
        if object_name in self.memory.origin:
            return self._put_down(self.memory.origin[object_name])
        return "inventory"

    def _put_down(self, place: str) -> str:
        step = self._reach(place)
        if step:
            return step
        object_name = self.memory.holding
        move_command = f"move {object_name} to {place}"
        put_command = f"put {object_name} in/on {place}"
        if self._admissible is not None:
            if put_command in self._admissible:
                return put_command
            return move_command
        self._pending_put = put_command if self._old_verb else move_command
        return self._pending_put

    # Moving and searching ---------------------------------------------------------------------------------------------

    def _reach(self, place: str, open_it: bool = True) -> str:
        """The next step towards having ``place`` within reach (and open), empty when it is."""
        memory = self.memory
        if place not in memory.here:
            return f"go to {place}"
        if open_it and memory.is_closed.get(place) is not False:
            if memory.is_closed.get(place):
                return f"open {place}"
            return f"examine {place}"
        return ""

    def _search(self, kind: str, odds: Mapping[str, float] | None = None) -> str:
        """Look into the most promising unsearched receptacle; ``odds`` are weights of receptacle types."""
        memory = self.memory
        if memory.searched.issuperset(memory.receptacles):  # then objects were moved
            memory.searched.clear()
        unseen = [name for name in memory.receptacles if name not in memory.searched]
        if not unseen:
            return "look"
        odds = odds or {}
        if self._orderly:
            treated = self.objects_in_target and self.goal is not None and self.goal.operation in _TOOLS
            last = "" if treated else next(iter(odds), "")
            receptacle = min(unseen, key=lambda name: _rank(kind, kind_of(name), last))
        else:
            receptacle = max(unseen, key=lambda name: odds.get(kind_of(name), 1.0) * self._promise(kind, name))
        return self._reach(receptacle) or f"examine {receptacle}"

    def _promise(self, kind: str, place: str) -> float:
        """Likelihood of finding ``kind`` in ``place``, divided by the turns needed to look."""
        type_ = kind_of(place)
        weight = PLACE_FREQUENCIES.get(kind, {}).get(type_, _RARE)
        alike = sum(kind_of(name) == type_ for name in self.memory.receptacles)
        turns = (place not in self.memory.here) + (self.memory.is_closed[place] is not False and type_ in _OPENABLE)
        return weight / alike / max(turns, 1)


def _rank(kind: str, place: str, last: str) -> tuple[bool, bool, bool, int]:
    """Sort key of an orderly search: usual places first, cabinets and drawers after others, ``last`` at the end."""
    usual = _USUAL.get(kind, ())
    is_usual = place in usual
    return place == last, not is_usual, place in ("cabinet", "drawer"), usual.index(place) if is_usual else 0


def _lamp_kinds(goal: HouseholdGoal) -> list[str]:
    if goal.lamp in PLACE_FREQUENCIES:
        return [goal.lamp]
    return ["desklamp", "floorlamp"]
