"""The native ALFWorld engine: plays ``game.tw-pddl`` files without TextWorld, with the same words."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from envs.alfworld.engine import BrokenGame, Scene, read_game
from envs.alfworld.grounding import Game, Operator
from envs.alfworld.logic import read_logic
from envs.alfworld.pddl import GameError, read_problem

NOTHING_HAPPENS = "Nothing happens."


def compile_game(domain: str, grammar: str, problem: str) -> Game:
    """Compile the three texts of a game; raises :class:`GameError`."""
    logic, task = read_logic(domain, grammar)
    try:
        read = read_problem(problem, logic.domain)
    except GameError as error:
        raise error.inside("pddl_problem") from None
    return Game(logic, read, task, f"{domain}\0{problem}".encode())


class Position:
    """The start of a game, worked out once and copied by every episode."""

    __slots__ = ("applicable", "commands", "facts", "game", "intro", "key", "places", "won")

    def __init__(self, game: Game):
        self.game = game
        self.facts = set(game.start)
        self.places = [literal for literal in game.places if literal in self.facts]
        self.key = game.key(self.facts)
        self.intro = game.intro()
        self.applicable = _applicable(game, self.facts, self.places)
        self.commands = sorted(self.applicable)
        self.won = game.won(self.facts)


class NativeEngine:
    """``game.tw-pddl`` files behind :class:`envs.alfworld.engine.Engine`; about a thousand times TextWorld's speed.

    keep: compiled games held in memory, the least recently played is dropped first.
    """

    def __init__(self, keep: int = 64):
        self._keep = keep
        self._games: OrderedDict[tuple[str, int, int], Position] = OrderedDict()
        self._game: Game | None = None

    def reset(self, game: Path) -> Scene:
        position = self._position(Path(game))
        self._game = position.game
        self._facts = set(position.facts)
        self._places = position.places
        self._key = position.key
        self._applicable = position.applicable
        self._commands = position.commands
        self._won = position.won
        won = position.won
        return Scene(position.intro, position.commands.copy(), won, won, int(won), f"{position.key:032x}")

    def step(self, command: str) -> Scene:
        game = self._game
        if game is None:
            raise RuntimeError("no game is loaded: call reset() before step()")
        operator = self._applicable.get(command.strip())
        if operator is None:
            text = NOTHING_HAPPENS
        else:
            feedback = operator.feedback
            if feedback is None:
                feedback = game.complete(operator)
            self._apply(operator)
            text = feedback if isinstance(feedback, str) else feedback(self._facts)
        won = self._won
        return Scene(text, self._commands.copy(), won, won, 1 if won else 0, f"{self._key:032x}")

    def close(self) -> None:
        self._game = None
        self._games.clear()

    def _apply(self, operator: Operator) -> None:
        game = self._game
        assert game is not None
        facts = self._facts
        add, remove = operator.add, operator.remove
        if operator.conditional:
            happening = [entry for entry in operator.conditional if entry[0] <= facts]
            more = {literal for _, _, ons in happening for literal in ons}
            less = {literal for _, offs, _ in happening for literal in offs}
            add = (*add, *more)
            remove = (*[literal for literal in remove if literal not in more], *less - more)
        key = self._key
        changed = False
        places = game.places
        moved = False
        for literal in remove:
            if literal in facts:
                facts.discard(literal)
                key ^= game.weight(literal)
                changed = True
                moved = moved or literal in places
        for literal in add:
            if literal not in facts:
                facts.add(literal)
                key ^= game.weight(literal)
                changed = True
                moved = moved or literal in places
        if changed:
            self._key = key
            if moved:
                self._places = [literal for literal in places if literal in facts]
            if operator.moves:
                self._applicable = _applicable(game, facts, self._places)
                self._commands = sorted(self._applicable)
            if operator.decides:
                self._won = game.won(facts)

    def _position(self, path: Path) -> Position:
        try:
            stat = path.stat()
        except OSError as error:
            raise BrokenGame(f"{path}: cannot be read ({error.strerror})") from None
        name = (str(path), stat.st_mtime_ns, stat.st_size)
        position = self._games.get(name)
        if position is None:
            data = read_game(path)
            try:
                game = compile_game(data["pddl_domain"], data["grammar"], data["pddl_problem"])
                position = Position(game)
            except GameError as error:
                raise BrokenGame(f"{path}: {error}") from None
            self._games[name] = position
            while len(self._games) > self._keep:
                self._games.popitem(last=False)
        else:
            self._games.move_to_end(name)
        return position


def _applicable(game: Game, facts: set[int], places: list[int]) -> dict[str, Operator]:
    """Command -> operator for all that can be done when ``facts`` are true and the agent is at ``places``."""
    found = dict(game.everywhere.free)
    for place in (game.everywhere, *[game.places[literal] or game.place(literal) for literal in places]):
        found.update(place.free)
        for guard in place.guards & facts:
            for rest, operator in place.guarded[guard]:
                if rest <= facts:
                    found[operator.command] = operator
    return found
