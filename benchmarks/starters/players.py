"""Who plays in a recipe: an expert whose slips repeat, and a learner that an expert corrects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.starters.search import revisits
from gagpo.agents.agent import EpisodeState, ExpertAgent, LanguageAgent, slip
from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn


def require_probability(name: str, value: float) -> None:
    """Raise :class:`InvalidArgument` for anything outside [0, 1]."""
    if not 0 <= value <= 1:
        raise InvalidArgument(f"{name} is a probability, got {value}", key=name)


class StubbornExpert(ExpertAgent):
    """An expert whose moves without effect are followed by another slip with probability ``stubborn``.

    The slip is the same move again, the expert's with another number, or half of one move and half of another. Such a
    demonstration shows how to recover from several failures in a row. Slips are not trainable.
    """

    def __init__(self, noise: float = 0.0, stubborn: float = 0.0):
        super().__init__(noise)
        require_probability("stubborn", stubborn)
        self.stubborn = stubborn

    def move(self, expert: str, state: EpisodeState, rng: np.random.Generator) -> Turn:
        actions, turns = state.info.get("admissible_actions"), state.episode.turns
        if self.stubborn and actions and turns and not turns[-1].valid and rng.random() < self.stubborn:
            action = _again(expert, turns[-1].action, actions, rng)
            return Turn("", action, action, trainable=False)
        return super().move(expert, state, rng)


class CorrectedAgent:
    """A learner that an expert corrects (as in DAgger, Ross et al. 2011): it plays, and the expert takes over at times.

    With probability ``refused`` after a move of the learner that had no effect, ``revisited`` after a walk to a known
    receptacle while a listed one was never looked into, ``repeated`` after a move that it made before in the episode,
    and ``takeover`` after any other, the expert makes the next one to four moves. Only those are trainable: they show
    what to do in the states that the learner reaches. An expert that came after every refusal would never show how to
    recover from a second one.
    """

    def __init__(
        self,
        learner: LanguageAgent,
        takeover: float = 0.15,
        refused: float = 0.35,
        repeated: float | None = None,
        revisited: float | None = None,
    ):
        require_probability("takeover", takeover)
        require_probability("refused", refused)
        require_probability("repeated", repeated or 0.0)
        require_probability("revisited", revisited or 0.0)
        self.learner = learner
        self.expert = ExpertAgent()
        self.takeover, self.refused, self.revisited = takeover, refused, revisited
        self.repeated = takeover if repeated is None else repeated
        self._left: dict[int, int] = {}  # by slot: moves that the expert still makes

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        taught = [self._is_taught(state) for state in states]
        own = iter(self.learner.decide([state for state, expert in zip(states, taught, strict=True) if not expert]))
        turns = [self._demonstrate(s) if expert else next(own) for s, expert in zip(states, taught, strict=True)]
        return [
            None if turn is None else replace(turn, trainable=expert)
            for turn, expert in zip(turns, taught, strict=True)
        ]

    def _demonstrate(self, state: EpisodeState) -> Turn | None:
        """The expert's turn in the learner's tokens."""
        (turn,) = self.expert.decide([state])
        if turn is None:
            return None
        context = self.learner.context
        response = context.action_format.write(turn)
        return replace(
            turn,
            prompt_ids=context.prompt(state.episode.turns, state.observation, state.info.get("admissible_actions")),
            response=response,
            response_ids=context.response(response),
        )

    def _is_taught(self, state: EpisodeState) -> bool:
        turns = state.episode.turns
        left = self._left.get(state.slot, 0) if turns else 0
        if not left and turns and not turns[-1].trainable:
            rng = np.random.default_rng([state.episode.seed, len(turns), 1])
            if rng.random() < self._probability(turns):
                left = int(rng.integers(1, 5))
        self._left[state.slot] = max(0, left - 1)
        return left > 0

    def _probability(self, turns: Sequence[Turn]) -> float:
        """With which the expert takes over after the learner's last turn."""
        if not turns[-1].valid:
            return self.refused
        if self.revisited is not None and revisits(turns)[-1]:
            return self.revisited
        if any(turn.action == turns[-1].action for turn in turns[:-1]):
            return self.repeated
        return self.takeover

    def forget(self, slot: int) -> None:
        self._left.pop(slot, None)
        self.learner.forget(slot)


def _again(meant: str, failed: str, actions: Sequence[str], rng: np.random.Generator) -> str:
    """One more slip after ``failed``: the same, ``meant`` with another number, or what :func:`slip` returns."""
    kind = rng.integers(3)
    if kind == 0:
        return failed
    if kind == 1:
        numbers = list(re.finditer(r"\d+", meant))
        if numbers:
            place = numbers[int(rng.integers(len(numbers)))]
            return meant[: place.start()] + str(1 + int(rng.integers(12))) + meant[place.end() :]
    return slip(meant, actions[int(rng.integers(len(actions)))], rng)
