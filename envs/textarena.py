"""A single-player game of TextArena as a ``gymnasium.Env``: ``textarena:NAME``."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium
import textarena

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info, Text


class Game(gymnasium.Env[str, str]):
    """An observation is what the game says since the last action. A success is the full reward of 1.

    game: its name in TextArena.
    kwargs: arguments of the game.
    """

    def __init__(self, game: str, render_mode: str | None = None, **kwargs: Any):
        self.observation_space, self.action_space = Text(), Text()
        self.name, self.kwargs = game, kwargs
        self._random: Any = None  # state of the global generator, which all games draw from
        self.game = self._make()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        self.game, self._shown = self._make(), ""  # wrappers of a game keep the episode before
        with self._own_random():
            try:
                self.game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                raise InvalidArgument(f"textarena:{self.name} cannot be played alone: {error}") from None
            return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        with self._own_random():
            done, _ = self.game.step(action=action)
            if not done:
                return self._observation(), 0.0, False, False, {}
            rewards, about = self.game.close()
        reward = float((rewards or {}).get(0, 0.0))
        return str(about[0].get("reason", "The game is over.")), reward, True, False, {"success": reward >= 1}

    def _make(self) -> Any:
        try:
            return textarena.make(self.name, **self.kwargs)
        except ValueError as error:
            raise InvalidArgument(f"textarena:{self.name}: {error}") from None

    def _observation(self) -> str:
        _, seen = self.game.get_observation()
        if not isinstance(seen, str):
            seen = "\n".join(message for _, message, *_ in seen)
        new, self._shown = seen.removeprefix(self._shown), seen
        return str(new).strip()

    @contextmanager
    def _own_random(self) -> Iterator[None]:
        """Games draw from the global generator; with a state of its own, each is independent of the others."""
        before = random.getstate()
        if self._random is not None:
            random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(before)
