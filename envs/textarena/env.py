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
    """An observation is the text since the last action. An episode with the full reward of 1 is a success.

    game: its name in TextArena.
    kwargs: arguments of the game.
    """

    def __init__(self, game: str, render_mode: str | None = None, **kwargs: Any):
        self.observation_space = Text()
        self.action_space = Text()
        self.name = game
        self.kwargs = kwargs
        self._random: Any = None  # this game's state of the global generator; None before the first reset
        self._shown_text = ""  # TextArena repeats it at the beginning of every observation
        self.game = self._make()

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[str, Info]:
        super().reset(seed=seed)
        self.game = self._make()  # a new one, because wrappers of a game keep the previous episode
        self._shown_text = ""
        with self._separate_random():
            try:
                self.game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                raise InvalidArgument(f"cannot be played alone: {error}", where=f"textarena:{self.name}") from None
            return self._observation(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        with self._separate_random():
            is_over, _ = self.game.step(action=action)
            if not is_over:
                return self._observation(), 0.0, False, False, {}
            rewards, player_info = self.game.close()
        reward = float((rewards or {}).get(0, 0.0))
        return str(player_info[0].get("reason", "The game is over.")), reward, True, False, {"success": reward >= 1}

    def _make(self) -> Any:
        try:
            return textarena.make(self.name, **self.kwargs)
        except ValueError as error:
            raise InvalidArgument(error, where=f"textarena:{self.name}") from None

    def _observation(self) -> str:
        _, text = self.game.get_observation()
        if not isinstance(text, str):
            text = "\n".join(message for _, message, *_ in text)
        unread = text.removeprefix(self._shown_text)
        self._shown_text = text
        return str(unread).strip()

    @contextmanager
    def _separate_random(self) -> Iterator[None]:
        """Games draw from the global generator; with a state of its own, each is independent of the others."""
        global_state = random.getstate()
        if self._random is not None:
            random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(global_state)
