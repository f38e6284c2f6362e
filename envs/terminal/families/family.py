"""What a family of tasks is, and where families are registered."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from gagpo.envs.terminal.exercise import Exercise
from gagpo.envs.terminal.families.words import SplitWords

Maker = Callable[[random.Random, int, SplitWords], Exercise]


@dataclass(frozen=True)
class TaskFamily:
    """A kind of task.

    levels: number of levels; higher ones are harder.
    make: makes the task of a generator, a level from 1 on, and a split's words.
    needs: a program beyond Debian's base system and Python.
    """

    name: str
    levels: int
    make: Maker
    needs: str = ""


FAMILIES: dict[str, TaskFamily] = {}


def family(name: str, levels: int, needs: str = "") -> Callable[[Maker], Maker]:
    """Register a function as the maker of a family."""

    def register(make: Maker) -> Maker:
        FAMILIES[name] = TaskFamily(name, levels, make, needs)
        return make

    return register


def sentence(rng: random.Random, words: list[str], length: int = 5) -> str:
    """A line of random words."""
    return " ".join(rng.choice(words) for _ in range(length))
