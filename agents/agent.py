"""Who acts: the language agent, and the random and expert agents it is measured against and warmed up with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from pydantic import JsonValue

from gagpo.agents.context import Context
from gagpo.agents.engines.base import Engine, Request, Response, Sampling
from gagpo.agents.episodes import Episode, Turn
from gagpo.base.errors import InvalidArgument
from gagpo.envs.tasks import split_task


@dataclass
class EpisodeState:
    """An episode under way: its turns so far, and the observation that waits for a response."""

    slot: int
    episode: Episode
    observation: str = ""
    info: dict[str, Any] = field(default_factory=dict)


class Agent(Protocol):
    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        """One turn per state, None where the context is full and the episode must end.

        A turn says what was responded, see :meth:`gagpo.agents.episodes.Turn.of`; the rollout enters to what.
        """
        ...

    def forget(self, slot: int) -> None:
        """The episode in ``slot`` is over or starts again."""
        ...


@runtime_checkable
class AsyncAgent(Agent, Protocol):
    """An agent that thinks about many episodes at once and answers each as soon as it knows."""

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        """Begin to think; gives the slots whose context is full, which get no answer."""
        ...

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Turn | None]]:
        """Slots and their turns, as soon as there is one; see :meth:`gagpo.agents.engines.base.Engine.collect`.

        None is for a slot whose context has turned out to be full.
        """
        ...


@dataclass(frozen=True)
class ChatFormat:
    """How a model is prompted in one environment. max_tokens: longest response."""

    context: Context
    max_tokens: int


class LanguageAgent:
    """A language model that reads observations and writes responses.

    formats: by the environment of an episode, where a run has several, see :func:`gagpo.envs.tasks.in_environment`;
    empty where all episodes are spoken to in ``context``.
    """

    def __init__(
        self, engine: Engine, context: Context, sampling: Sampling, formats: Mapping[str, ChatFormat] | None = None
    ):
        self.engine = engine
        self.context = context
        self.sampling = sampling
        self.formats = dict(formats or {})
        self._usual = ChatFormat(context, sampling.max_tokens)
        self._spoken: dict[int, ChatFormat] = {}  # by slot: how its last request was put

    @property
    def conditions(self) -> dict[str, JsonValue]:
        """How the model is spoken to and sampled from, as plain values; a result is only comparable under like ones."""
        return {
            **self.context.conditions,
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "dtype": self.engine.dtype,
        }

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        requests = [self._request(state) for state in states]
        asked = [request for request in requests if request is not None]
        responses = iter(self.engine.generate(asked, self.sampling))
        return [None if request is None else self._turn(request, next(responses)) for request in requests]

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        requests = [self._request(state) for state in states]
        self.engine.submit([request for request in requests if request is not None], self.sampling)
        return [state.slot for state, request in zip(states, requests, strict=True) if request is None]

    def collect(self, timeout: float | None) -> list[tuple[int, Turn]]:
        finished = self.engine.collect(timeout)
        return [(request.session, self._turn(request, response)) for request, response in finished]

    def _request(self, state: EpisodeState) -> Request | None:
        """What to ask the engine; None where prompt and response would not fit."""
        turns = state.episode.turns
        chat = self.formats[split_task(state.episode.task)[0]] if self.formats else self._usual
        self._spoken[state.slot] = chat
        prompt_ids = chat.context.prompt(turns, state.observation, state.info.get("admissible_actions"))
        if len(prompt_ids) + chat.max_tokens > self.engine.max_length:
            return None
        if state.episode.temperature is None:
            state.episode.temperature = self.sampling.temperature
        seed = state.episode.seed << 16 | len(turns)
        most = chat.max_tokens if self.formats else None
        return Request(state.slot, prompt_ids, seed, state.episode.temperature, most)

    def _turn(self, request: Request, response: Response) -> Turn:
        turn = self._spoken[request.session].context.turn(response.ids, cut=not response.stopped)
        turn.prompt_ids, turn.response_ids, turn.logprobs = request.prompt_ids, response.ids, response.logprobs
        return turn

    def forget(self, slot: int) -> None:
        self._spoken.pop(slot, None)
        self.engine.release(slot)


class RandomAgent:
    """Chooses uniformly among the admissible actions; the floor of every comparison.

    An environment that cannot list its actions is built with ``expert="random"``: it then offers samples of them.
    """

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._choose(state) for state in states]

    def _choose(self, state: EpisodeState) -> Turn:
        actions = state.info.get("admissible_actions") or state.info.get("sampled_actions")
        if not actions:
            raise InvalidArgument(
                f"the random agent needs info['admissible_actions'], which task {state.episode.task!r} does not give; "
                'build the environment with expert="random", so that it offers samples'
            )
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns)])
        action = actions[int(rng.integers(len(actions)))]
        return Turn.of(action, action)

    def forget(self, slot: int) -> None:
        pass


class ExpertAgent:
    """Follows the environment's expert, and strays from it with probability ``noise`` to show how to recover.

    The environment must be built with an expert. Half of the stray moves are admissible actions, drawn uniformly; the
    others begin like the expert's and end like one of those ("take mug 1 from shelf 2"), which is mostly not an action
    at all. A learner makes such slips and has to see what follows. Stray moves are not trainable.
    """

    def __init__(self, noise: float = 0.0):
        if not 0 <= noise <= 1:
            raise InvalidArgument(f"noise is a probability, got {noise}")
        self.noise = noise

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._follow(state) for state in states]

    def _follow(self, state: EpisodeState) -> Turn | None:
        expert = state.info.get("expert_action")
        if expert is None:
            if "expert_action" not in state.info:
                raise InvalidArgument("the environment offers no expert; build it with expert=True if it has one")
            return None
        return self.move(expert, state, np.random.default_rng([state.episode.seed, len(state.episode.turns)]))

    def move(self, expert: str, state: EpisodeState, rng: np.random.Generator) -> Turn:
        """The expert's action, or a stray one."""
        actions = state.info.get("admissible_actions")
        if self.noise and actions and rng.random() < self.noise:
            action = actions[int(rng.integers(len(actions)))]
            if rng.random() < 0.5:
                action = slip(expert, action, rng)
            return Turn("", action, action, trainable=False)
        return Turn.acting(expert)

    def forget(self, slot: int) -> None:
        pass


def slip(meant: str, other: str, rng: np.random.Generator) -> str:
    """The first words of ``meant``, a random number of them, and then those of ``other``."""
    words = meant.split(" ")
    kept = int(rng.integers(1, len(words))) if len(words) > 1 else 0
    return " ".join([*words[:kept], *other.split(" ")[kept:]])
