"""Demonstrations of ALFWorld in which things have other names: what is in a room is then read, not known.

A small model that only sees usual rooms learns which furniture they have, and walks to a desk that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from benchmarks.starters.web_pages import SYLLABLES, draw
from gagpo.data import Episode
from gagpo.data.turn import NO_IDS
from gagpo.envs.alfworld.games.alfred import WIDE_FURNITURE
from gagpo.envs.alfworld.games.catalogue import ROOMS

_NUMBERED = re.compile(r"\b([a-z]+) (\d+)\b")
_TASK = re.compile(r"(?<=Your task is to: ).*", re.DOTALL)
_WORD = re.compile(r"\b[a-z]+\b")
FURNITURE = tuple(sorted({kind.lower() for room in WIDE_FURNITURE.values() for kind in room}))
OBJECTS = tuple(sorted({kind.lower() for room in ROOMS.values() for kind in room.objects("full")}))
TOOLS = frozenset({"fridge", "microwave", "sinkbasin", "desklamp", "floorlamp"})
"""Things whose name says what they are for."""
NOT_NAMES = frozenset({"loc"})  # "You arrive at loc 8."
SPARE_NUMBERS = 4  # numbers of objects reach this far beyond their count

Rng = np.random.Generator


def renamed(episode: Episode, rng: Rng) -> Episode:
    """The episode with half of its types of things renamed, and with other numbers for its objects.

    A new name is that of something else of its kind, or a word that means nothing. The task must be in the words of
    the environment (``texts: template``), which name things as the observations do.
    """
    texts = [text for turn in episode.turns for text in (turn.observation, turn.action)]
    numbers: dict[str, set[int]] = {}
    for text in texts:
        for name, number in _NUMBERED.findall(text):
            if name not in NOT_NAMES:
                numbers.setdefault(name, set()).add(int(number))
    names = _new_names(sorted(set(numbers) - TOOLS), rng)
    new_numbers = {
        (name, old): new
        for name in sorted(set(numbers) - set(FURNITURE) - TOOLS)
        for old, new in _new_numbers(sorted(numbers[name]), rng).items()
    }

    def rewritten(text: str) -> str:
        def numbered(match: re.Match[str]) -> str:
            name, number = match[1], int(match[2])
            return f"{names.get(name, name)} {new_numbers.get((name, number), number)}"

        def task(match: re.Match[str]) -> str:
            return _WORD.sub(lambda word: names.get(word[0], word[0]), match[0])

        return _TASK.sub(task, _NUMBERED.sub(numbered, text))

    return _with_texts(episode, rewritten)


def _new_names(names: list[str], rng: Rng) -> dict[str, str]:
    """New names for about half of them, no two alike."""
    taken = set(names) | TOOLS
    chosen: dict[str, str] = {}
    for name in names:
        if rng.random() < 0.5:
            continue
        usual = FURNITURE if name in FURNITURE else OBJECTS
        new = draw(rng, usual) if rng.random() < 0.5 else _invented(rng)
        if new not in taken:
            chosen[name] = new
            taken.add(new)
    return chosen


def _invented(rng: Rng) -> str:
    return "".join(draw(rng, SYLLABLES) for _ in range(int(rng.integers(2, 5))))


def _new_numbers(numbers: list[int], rng: Rng) -> dict[int, int]:
    """Other numbers in the same order, so that lists stay sorted."""
    drawn = rng.permutation(len(numbers) + SPARE_NUMBERS)[: len(numbers)] + 1
    return dict(zip(numbers, sorted(drawn.tolist()), strict=True))


def _with_texts(episode: Episode, rewritten: Callable[[str], str]) -> Episode:
    """The episode in other words; its tokens are made later."""
    turns = [
        replace(
            turn,
            observation=rewritten(turn.observation),
            response=rewritten(turn.response),
            action=rewritten(turn.action),
            prompt_ids=NO_IDS,
            response_ids=NO_IDS,
        )
        for turn in episode.turns
    ]
    return replace(episode, turns=turns)
