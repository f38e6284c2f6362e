"""The language model as an agent: from the observations of many episodes to requests, from responses to turns.

Agents are asked for many states at once, because an engine decodes a batch in about the time of one response. The agent
keeps no episode: what a prompt needs is in the state, so an episode whose environment failed restarts from nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pydantic import JsonValue

from gagpo.agents.context import Context, GenerationRequest, RejectedRequest
from gagpo.agents.engines.base import Engine, Request, Response, Sampling, require_stop
from gagpo.agents.scripted import ExpertAgent, RandomAgent, slip
from gagpo.data import Episode, Turn
from gagpo.envs.gateway.messages import Completion
from gagpo.envs.tasks import split_task

__all__ = [
    "Agent",
    "AsyncAgent",
    "ChatFormat",
    "EpisodeState",
    "ExpertAgent",
    "LanguageAgent",
    "NoRoom",
    "RandomAgent",
    "Rejected",
    "slip",
]


@dataclass
class EpisodeState:
    """An episode under way, with the observation to respond to."""

    slot: int
    episode: Episode
    observation: str = ""
    info: dict[str, Any] = field(default_factory=dict)


class Agent(Protocol):
    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        """One turn per state, without its observation; None where the context is full and the episode must end."""

    def forget(self, slot: int) -> None:
        """Drop the state of the episode in ``slot``, which has ended or restarts."""


@runtime_checkable
class AsyncAgent(Agent, Protocol):
    """An agent that works on many episodes at once and returns each turn as soon as it is ready."""

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        """Start turns for these states; returns the slots whose context is full, which get none."""

    def collect(self, timeout: float | None) -> Sequence[tuple[int, Turn | None]]:
        """Finished turns by slot, None for a full context; waits like an engine's ``collect``."""


@dataclass(frozen=True)
class ChatFormat:
    """How a model is prompted in one environment, and the most tokens of a response."""

    context: Context
    max_tokens: int


@dataclass(frozen=True)
class Rejected:
    """The model is not asked: ``turn`` answers a program's request that cannot become a prompt. The episode goes on."""

    turn: Turn


@dataclass(frozen=True)
class NoRoom:
    """The model is not asked: no response has room after the prompt. The episode ends."""


Preparation = Request | Rejected | NoRoom


class LanguageAgent:
    """A language model that reads observations and writes responses.

    formats: by environment, for a run with several; otherwise all episodes use ``context``.

    Raises: InvalidArgument for stop strings that the engine does not take.
    """

    def __init__(
        self, engine: Engine, context: Context, sampling: Sampling, formats: Mapping[str, ChatFormat] | None = None
    ):
        self.engine = engine
        self.context = context
        self.sampling = sampling
        self.formats = dict(formats or {})
        self._default = ChatFormat(context, sampling.max_tokens)
        for each_context in (context, *(chat.context for chat in self.formats.values())):
            require_stop(engine, each_context.stop)
        self._prompts: dict[int, GenerationRequest] = {}  # by slot: the last one
        self._rejections: dict[int, Turn] = {}  # by slot: requests that no engine answers, for the next ``collect``

    @property
    def conditions(self) -> dict[str, JsonValue]:
        """How the model is prompted and sampled from; results are comparable only under equal conditions."""
        return {
            **self.context.conditions,
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": 1.0,
            "dtype": self.engine.dtype,
        }

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        preparations = [self._prepare(state) for state in states]
        # One call for all requests: the engine decodes them together.
        requests = [prepared for prepared in preparations if isinstance(prepared, Request)]
        responses = iter(self.engine.generate(requests, self.sampling))
        turns: list[Turn | None] = []
        for prepared in preparations:
            match prepared:
                case Request():
                    turns.append(self._turn(prepared, next(responses)))
                case Rejected(turn):
                    turns.append(turn)
                case NoRoom():
                    turns.append(None)
        return turns

    def submit(self, states: Sequence[EpisodeState]) -> list[int]:
        requests: list[Request] = []
        full_slots: list[int] = []
        for state in states:
            prepared = self._prepare(state)
            match prepared:
                case Request():
                    requests.append(prepared)
                case Rejected(turn):
                    self._rejections[state.slot] = turn
                case NoRoom():
                    full_slots.append(state.slot)
        self.engine.submit(requests, self.sampling)
        return full_slots

    def collect(self, timeout: float | None) -> list[tuple[int, Turn]]:
        if self._rejections:
            rejections = list(self._rejections.items())
            self._rejections = {}
            return rejections  # without waiting for the engine, which may have nothing to do
        finished = self.engine.collect(timeout)
        return [(request.session, self._turn(request, response)) for request, response in finished]

    def _prepare(self, state: EpisodeState) -> Preparation:
        """The request for the response to a state, or why the model is not asked."""
        turns = state.episode.turns
        chat = self._default
        if self.formats:  # a mixture: the task's name begins with its environment
            chat = self.formats[split_task(state.episode.task)[0]]
        if chat.context.exceeds(state.info, self.engine.max_length):
            return NoRoom()
        prompting = chat.context.ask(turns, state.observation, state.info)
        if isinstance(prompting, RejectedRequest):
            return Rejected(Turn.rejection(Completion(rejected=prompting.reason, status=prompting.status).action))
        self._prompts[state.slot] = prompting
        max_tokens = min(chat.max_tokens, prompting.max_tokens or chat.max_tokens)
        if len(prompting.prompt_ids) + max_tokens > self.engine.max_length:
            return NoRoom()
        if state.episode.temperature is None:
            state.episode.temperature = self.sampling.temperature
        # Each turn has a seed of its own, in place of one random stream of the agent: the response then depends neither
        # on the batch nor on which episodes ended before. The low 16 bits number the turn.
        seed = state.episode.seed << 16 | len(turns)
        limit = None if max_tokens == self.sampling.max_tokens else max_tokens
        # An engine that does not take stop strings samples on; what comes after one is then cut off.
        stop = prompting.stop if getattr(self.engine, "takes_stop", False) else ()
        return Request(state.slot, prompting.prompt_ids, seed, state.episode.temperature, limit, stop)

    def _turn(self, request: Request, response: Response) -> Turn:
        return self._prompts[request.session].read(response)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, with special tokens visible."""
        return str(self.context.tokenizer.decode(ids))

    def forget(self, slot: int) -> None:
        self._prompts.pop(slot, None)
        self._rejections.pop(slot, None)
        self.engine.release(slot)
