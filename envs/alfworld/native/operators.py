"""Ground actions, and where they are found: at a place, at a fact that may come true, or shared between places."""

from __future__ import annotations

from gagpo.envs.alfworld.native.formulas import Quantified
from gagpo.envs.alfworld.native.logic import Entry
from gagpo.envs.alfworld.native.narration import Env
from gagpo.envs.alfworld.native.state import Binding, Fact, Row, Slot

Change = tuple[Fact, tuple[Slot, ...], int]  # a fact, its slots, what it weighs in the state key
NOTHING: frozenset[Fact] = frozenset()


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
        self.need: frozenset[Fact] = NOTHING
        self.forbid: frozenset[Fact] = NOTHING
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
        self.need: frozenset[Fact] = NOTHING
        self.forbid: frozenset[Fact] = NOTHING
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
