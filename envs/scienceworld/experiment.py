"""An episode in the simulator, which may share its process with others and may outlive it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from gagpo.envs.scienceworld.simulator import ActionFailed, Globals, Simulator, SimulatorFailed

_NO_ACTION = "No known action matches that input."
_UNKNOWN_ACTION = "Unknown action."
_AMBIGUOUS = "Ambiguous request"
FAILED = "The simulator cannot carry out this action."


class Variation(NamedTuple):
    """What the simulator loads: a variation of a task, with simplifications separated by commas."""

    task: str
    variation: int
    simplifications: str = ""


_GOLD_PATHS: dict[Variation, list[str]] = {}
"""The gold paths of this process: they are the same each time, and there are 7,207 variations in all."""


class SimulatorReply(NamedTuple):
    """The answer to an action.

    text: as the simulator writes it.
    score: so far, at most 100; -100 after a mistake that cannot be undone.
    completed: the task is solved or failed.
    valid: the action was understood.
    """

    text: str
    score: int
    completed: bool
    valid: bool


class Experiment:
    """One episode. Another one in the same process does not change it, and it is replayed if the process was lost.

    history: the actions that the state depends on: all but those that the simulator did not understand.
    """

    def __init__(self, simulator: Simulator):
        self._simulator = simulator
        self._interface: Any = None
        self._generation = 0
        self._globals: Globals | None = None
        self._start: Variation | None = None
        self._ambiguous = False
        self.history: list[str] = []

    def load(self, start: Variation, with_gold: bool = False) -> list[str]:
        """Begin an episode; returns the gold path, which takes longer the first time, or nothing.

        Raises:
            MissingPackage, SimulatorFailed: see :class:`Simulator`.
            ActionFailed: the simulator cannot load it.
        """
        self._start = start
        self._globals = None
        self._ambiguous = False
        self.history = []
        gold = _GOLD_PATHS.get(start)
        search = with_gold and gold is None
        with self._turn(load=False) as interface:
            problem = self._simulator.call(lambda: _load(interface, start, search))
            if problem:
                raise ActionFailed(f"ScienceWorld cannot load {start.task} {start.variation}: {problem}")
            if search:
                gold = self._simulator.call(lambda: self._simulator.texts(interface.getGoldActionSequence()))
                _GOLD_PATHS[start] = gold
        return list(gold or []) if with_gold else []

    def look(self) -> tuple[str, str]:
        """The description of the task, and what the agent sees; takes no time in the simulator."""
        with self._turn() as interface:
            return self._simulator.call(lambda: (interface.getTaskDescription(), interface.freeActionLook()))

    def step(self, action: str) -> SimulatorReply:
        """Carry out an action.

        An action that makes the simulator raise an error is invalid. It stays in the history, because it may have
        changed the simulator's state.
        """
        with self._turn() as interface:
            try:
                reply = self._simulator.call(lambda: _step(interface, action))
            except ActionFailed:
                reply = self._simulator.call(lambda: _reply(interface, FAILED))
        understood = not reply.text.startswith(_NO_ACTION)
        if understood or self._ambiguous:
            self.history.append(action)
        self._ambiguous = reply.text.startswith(_AMBIGUOUS)
        return reply

    def valid_actions(self) -> list[str]:
        """All actions that the simulator would carry out; takes tenths of a second."""
        with self._turn() as interface:
            return self._unchanged(
                lambda: sorted(set(self._simulator.texts(interface.getValidActionObjectCombinations())))
            )

    def vocabulary(self) -> tuple[list[str], list[str]]:
        """The forms of actions, with OBJ for an object, and the objects that the agent sees."""
        texts = self._simulator.texts
        with self._turn() as interface:
            templates = self._unchanged(lambda: texts(interface.getPossibleActions()))
            objects = self._unchanged(lambda: texts(interface.getPossibleObjects()))
        return sorted(templates), sorted(objects)

    def _unchanged(self, function: Callable[[], list[str]]) -> list[str]:
        """The result of a question to the simulator, without traces in its globals."""
        values = self._simulator.call(self._simulator.read_globals)
        result = self._simulator.call(function)
        self._simulator.call(lambda: self._simulator.set_globals(values))
        return result

    @contextmanager
    def _turn(self, load: bool = True) -> Iterator[Any]:
        """Hold the simulator with this episode's globals; ``load`` the episode again if the process was lost."""
        simulator = self._simulator
        with simulator.lock:
            simulator.start()
            previous = simulator.active
            if isinstance(previous, Experiment) and previous is not self:  # it had the last turn: save its globals
                previous._globals = simulator.call(simulator.read_globals)
            simulator.active = None  # of nobody, if an error leaves the globals between two episodes
            if self._generation != simulator.generation:
                self._interface = simulator.new_interface()
                self._generation = simulator.generation
                if load:
                    self._replay()
            elif load and previous is not self and self._globals is not None:
                values = self._globals
                simulator.call(lambda: simulator.set_globals(values))
            simulator.active = self
            yield self._interface

    def _replay(self) -> None:
        """Load the episode and repeat its actions, which leads to the same state."""
        if self._start is None:
            raise SimulatorFailed("the ScienceWorld process was lost before an episode began")
        start = self._start
        interface = self._interface
        self._simulator.call(lambda: _load(interface, start, False))
        for action in self.history:
            with suppress(ActionFailed):  # as it did the first time
                self._simulator.call(functools.partial(interface.step, action))


def _load(interface: Any, start: Variation, search: bool) -> str:
    """Load ``start``, with its gold path if ``search``; returns what is wrong, or an empty text."""
    problem = str(interface.load(*start, search))
    # Until an action takes time, the simulator keeps the score of the previous episode.
    getattr(interface, "score_$eq")(0.0)
    getattr(interface, "isComplete_$eq")(False)
    return problem


def _step(interface: Any, action: str) -> SimulatorReply:
    return _reply(interface, str(interface.step(action)))


def _reply(interface: Any, text: str) -> SimulatorReply:
    score = round(100 * interface.getScore())
    completed = bool(interface.getCompleted()) or score < 0
    return SimulatorReply(text, score, completed, not text.startswith((_NO_ACTION, _UNKNOWN_ACTION, FAILED)))
