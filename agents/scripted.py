"""Agents without a model: uniformly random actions, and the environment's expert with or without mistakes.

Both draw from a generator of the episode's seed and the turn's number, not from one of the agent: an episode is then
the same whatever else runs at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn
from gagpo.envs.tools import separate

if TYPE_CHECKING:
    from gagpo.agents.agent import EpisodeState


class RandomAgent:
    """Chooses uniformly among the admissible actions.

    An environment that cannot list its actions is built with ``expert="random"``: it then offers samples of them.
    """

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._choose(state) for state in states]

    def _choose(self, state: EpisodeState) -> Turn:
        actions = state.info.get("admissible_actions") or state.info.get("sampled_actions")
        if not actions:
            raise InvalidArgument(
                f"the random agent needs info['admissible_actions'], which task {state.episode.task!r} does not give",
                advice='build the environment with expert="random", so that it offers samples',
            )
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns)])
        action = actions[int(rng.integers(len(actions)))]
        return Turn.of(action, action)

    def forget(self, slot: int) -> None:
        pass


class ExpertAgent:
    """Follows the environment's expert, with mistakes at probability ``noise`` to show how to recover from them.

    The environment must be built with an expert. Half of the mistakes are admissible actions, drawn uniformly. The
    others begin like the expert's action and end like an admissible one ("take mug 1 from shelf 2"), as the slips of a
    learner do, and are rarely valid. Mistakes are not trainable.
    """

    def __init__(self, noise: float = 0.0):
        if not 0 <= noise <= 1:
            raise InvalidArgument(f"noise must be a probability from 0 to 1 (got {noise})", key="noise")
        self.noise = noise

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._follow(state) for state in states]

    def _follow(self, state: EpisodeState) -> Turn | None:
        expert = state.info.get("expert_action")
        if expert is None:
            if "expert_action" not in state.info:
                raise InvalidArgument(
                    "the environment offers no expert", advice="build it with expert=True if it has one"
                )
            return None
        return self.move(expert, state, np.random.default_rng([state.episode.seed, len(state.episode.turns)]))

    def move(self, expert: str, state: EpisodeState, rng: np.random.Generator) -> Turn:
        """The expert's action, or a mistake."""
        actions = state.info.get("admissible_actions")
        if self.noise and actions and rng.random() < self.noise:
            action = actions[int(rng.integers(len(actions)))]
            if rng.random() < 0.5:
                action = slip(expert, action, rng)
            return Turn("", action, action, trainable=False)
        return Turn.of_actions(separate(expert))

    def forget(self, slot: int) -> None:
        pass


def slip(expert: str, action: str, rng: np.random.Generator) -> str:
    """A random number of the first words of the ``expert``'s action, then those of ``action``."""
    expert_words = expert.split(" ")
    num_words = int(rng.integers(1, len(expert_words))) if len(expert_words) > 1 else 0
    return " ".join([*expert_words[:num_words], *action.split(" ")[num_words:]])
