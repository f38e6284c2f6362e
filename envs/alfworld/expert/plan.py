"""A walkthrough for a game that has none: the expert plays until it wins, and what was not needed is left out.

The goal is read from the game's PDDL, so people's own words for a task, which the expert may misread, do no harm. Every
plan was played to the end on the native engine, so it wins. It is short, not always the shortest.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path

from gagpo.envs.alfworld.engine import GameEngine, make_engine, read_game
from gagpo.envs.alfworld.expert.expert import Expert
from gagpo.envs.alfworld.expert.wording import HouseholdGoal

MOST_TURNS = 300  # twice what looking into every place of a large room takes


def plan(game: Path) -> tuple[str, ...]:
    """Commands that win ``game``, the last one exactly; none where the expert does not. Remembered.

    Raises :class:`~gagpo.envs.alfworld.engine.BrokenGame`.
    """
    stat = game.stat() if game.exists() else None
    return _plan(game, stat and stat.st_mtime_ns, stat and stat.st_size)


@functools.lru_cache(maxsize=4096)
def _plan(game: Path, *version: int | None) -> tuple[str, ...]:
    engine = make_engine("native")
    try:
        return tuple(_shortened(engine, game, _won(engine, game)))
    finally:
        engine.close()


def _won(engine: GameEngine, game: Path) -> list[str]:
    """What the expert does until it wins; nothing where it gives up or the turns run out."""
    scene = engine.reset(game)
    expert = Expert(scene.observation, scene.admissible_commands)
    expert.goal = _goal(game) or expert.goal
    done: list[str] = []
    while expert.understood and not scene.won and len(done) < MOST_TURNS:
        # The expert plays as an agent would, by the text alone.
        command = expert.next_action() or "look"
        scene = engine.step(command)
        expert.observe(command, scene.observation, scene.admissible_commands)
        done.append(command)
    return done if scene.won else []


def _goal(game: Path) -> HouseholdGoal | None:
    """What the PDDL of ``game`` asks for, where it is one of ALFWorld's six kinds of goals."""
    _, _, text = read_game(game)["pddl_problem"].lower().partition("(:goal")
    typed = dict(re.findall(r"\(objecttype \?(\w+) (\w+?)type\)", text))
    targets = re.findall(r"\(receptacletype \?\w+ (\w+?)type\)", text)
    lamp = re.search(r"\(istoggled \?(\w+)\)", text)
    if lamp and lamp[1] in typed:
        toggled = typed.pop(lamp[1])
        return HouseholdGoal(next(iter(typed.values()), ""), operation="light", lamp=toggled)
    if not typed or not targets:
        return None
    done = re.search(r"\(is(clean|hot|cool) \?", text)
    operation = {"clean": "clean", "hot": "heat", "cool": "cool"}[done[1]] if done else ""
    return HouseholdGoal(next(iter(typed.values())), targets[0], operation, count=len(typed))


def _shortened(engine: GameEngine, game: Path, commands: list[str]) -> list[str]:
    """``commands`` without those that are not needed: long stretches first, then single ones."""
    stretch = len(commands) // 2
    while stretch:
        # Every stretch of this length is left out once; what the game is won without stays out.
        start = 0
        while start < len(commands):
            shorter = commands[:start] + commands[start + stretch :]
            if _wins(engine, game, shorter):
                commands = shorter
            else:
                start += stretch
        stretch //= 2
    return commands


def _wins(engine: GameEngine, game: Path, commands: Sequence[str]) -> bool:
    """Whether ``commands`` are all admissible and exactly the last one wins."""
    scene = engine.reset(game)
    for command in commands:
        if scene.won or command not in scene.admissible_commands:
            return False
        scene = engine.step(command)
    return scene.won
