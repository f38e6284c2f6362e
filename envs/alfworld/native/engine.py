"""The native ALFWorld engine: runs ``game.tw-pddl`` files without TextWorld, with the same texts."""

from __future__ import annotations

import functools
from pathlib import Path

from gagpo.envs.alfworld.engine import NOTHING_HAPPENS, BrokenGame, Scene, read_game
from gagpo.envs.alfworld.native.formulas import GameError
from gagpo.envs.alfworld.native.grounding import Change, GroundGame, Operator
from gagpo.envs.alfworld.native.logic import TASK, read_logic
from gagpo.envs.alfworld.native.pddl import read_problem
from gagpo.envs.alfworld.native.state import Fact


def compile_game(domain: str, grammar: str, problem: str) -> GroundGame:
    """Compile the three texts of a game; raises :class:`GameError`."""
    logic, task = read_logic(domain, grammar)
    try:
        parsed_problem = read_problem(problem, logic.domain)
    except GameError as error:
        raise error.inside("pddl_problem") from None
    return GroundGame(logic, parsed_problem, task, f"{domain}\0{problem}".encode())


class GameStart:
    """The start of a game, computed once and copied by every episode."""

    def __init__(self, game: GroundGame):
        self.game = game
        self.state = game.start
        self.key = game.start_key
        self.intro = game.logic.intro.render((), game.static, self.state).replace(TASK, game.task)
        self.place, self.applicable, self.commands = game.applicable(self.state)
        self.won = game.won(self.state)


class GameCache:
    """Up to ``size`` compiled games; drops the least recently used first. A changed file is compiled again."""

    def __init__(self, size: int = 512):
        self._compiled = functools.lru_cache(size)(self._compile)

    def start(self, path: Path) -> GameStart:
        """The start of the game in ``path``; raises :class:`BrokenGame`."""
        try:
            stat = path.stat()
        except OSError as error:
            raise BrokenGame(f"cannot be read ({error.strerror})", where=path) from None
        return self._compiled(path, stat.st_mtime_ns, stat.st_size)

    @staticmethod
    def _compile(path: Path, *_version: int) -> GameStart:
        data = read_game(path)
        try:
            return GameStart(compile_game(data["pddl_domain"], data["grammar"], data["pddl_problem"]))
        except GameError as error:
            raise BrokenGame(error, where=path) from None


SHARED_CACHE = GameCache()  # for all engines of this process: its environments read the same games


class NativeEngine:
    """Runs one ``game.tw-pddl`` file at a time, a thousand times as fast as TextWorld.

    games: compiled games. Engines that share a cache must run in one thread: games fill in operators as they run.
    """

    def __init__(self, games: GameCache = SHARED_CACHE):
        self.games = games
        self._game: GroundGame | None = None
        self._path = Path()

    def reset(self, game: Path) -> Scene:
        """Start ``game``; raises :class:`BrokenGame`."""
        game = Path(game)
        position = self.games.start(game)
        self._game = position.game
        self._path = game
        self._state = position.state.copy()
        self._key = position.key
        self._place = position.place
        self._applicable = position.applicable
        self._commands = position.commands
        self._won = position.won
        return self._scene(position.intro)

    def step(self, command: str) -> Scene:
        """Carry out ``command``; one that is not admissible changes nothing."""
        if self._game is None:
            raise RuntimeError("no game is loaded: call reset() first")
        operator = self._applicable.get(command.strip())
        if operator is None:
            text = NOTHING_HAPPENS
        else:
            try:
                text = self._carry_out(self._game, operator)
            except GameError as error:
                raise BrokenGame(f"command {command.strip()!r}: {error}", where=self._path) from None
        return self._scene(text)

    def close(self) -> None:
        self._game = None

    def _scene(self, text: str) -> Scene:
        won = self._won
        return Scene(text, self._commands.copy(), won, won, int(won), f"{self._key:032x}")

    def _carry_out(self, game: GroundGame, operator: Operator) -> str:
        game.static.refill()
        if not operator.ready:
            game.prepare(operator)
        state = self._state
        facts = state.facts
        env = operator.env
        changed = False
        key = self._key
        remove = operator.remove
        add = operator.add
        if operator.leaves_place:
            # A shared operator has blanks for what differs between places: fill them in for this one.
            assert self._place.leaving is not None
            remove = (*remove, self._place.leaving)
            trigger_binding = self._place.binding[id(operator.entry)]
            parameters = operator.entry.schema.action.parameters
            env = tuple(
                [
                    o or game.static.cast(trigger_binding[name], type_name)
                    for o, (name, type_name) in zip(env, parameters, strict=True)
                ]
            )
        if operator.conditional:
            add, remove = _with_conditional(operator, facts, add, remove)
        # Removals first: in PDDL, a fact that an action both removes and adds is true afterwards.
        for fact, slots, weight in remove:
            if fact in facts:
                state.discard(fact, slots)
                key ^= weight
                changed = True
        for fact, slots, weight in add:
            if fact not in facts:
                state.insert(fact, slots)
                key ^= weight
                changed = True
        text = operator.entry.schema.feedback.render(env, game.static, state)
        if changed:
            self._key = key
            if operator.changes_commands:
                self._place, self._applicable, self._commands = game.applicable(state)
            if operator.changes_goal:
                self._won = game.won(state)
        return text


def _with_conditional(
    operator: Operator, facts: set[Fact], add: tuple[Change, ...], remove: tuple[Change, ...]
) -> tuple[tuple[Change, ...], tuple[Change, ...]]:
    """``add`` and ``remove`` with the conditional changes that happen; a fact both added and removed is added."""
    happening = [
        (is_added, change)
        for need, forbid, is_added, change in operator.conditional
        if need <= facts and forbid.isdisjoint(facts)
    ]
    more = tuple(change for added, change in happening if added)
    added_facts = {change[0] for change in more}
    less = tuple(change for added, change in happening if not added and change[0] not in added_facts)
    return (*add, *more), (*remove, *less)
