"""Who acts: the language agent, and the random and expert agents it is measured against and warmed up with."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gagpo.agents.context import Context
from gagpo.agents.engines.base import Engine, Request, Response, Sampling
from gagpo.agents.episodes import Episode
from gagpo.agents.parsing import parse
from gagpo.envs.errors import InvalidArgument

_EMPTY_IDS = np.zeros(0, np.int32)
_EMPTY_LOGPROBS = np.zeros(0, np.float32)


@dataclass
class Live:
    """An episode under way: its turns so far, and the observation that waits for a response."""

    slot: int
    episode: Episode
    observation: str = ""
    info: dict[str, Any] = field(default_factory=dict)


@dataclass
class Decision:
    """A response and the action parsed from it; ``parsed`` is False when there was none (the action is then '').

    trainable: False for a move that must not be learned from (an expert's deliberate noise).
    version: of the weights it was sampled with, in updates of the run; None where there is only one.
    """

    response: str
    action: str
    parsed: bool = True
    trainable: bool = True
    prompt_ids: np.ndarray = field(default_factory=lambda: _EMPTY_IDS)
    response_ids: np.ndarray = field(default_factory=lambda: _EMPTY_IDS)
    logprobs: np.ndarray = field(default_factory=lambda: _EMPTY_LOGPROBS)
    version: int | None = None


class Agent(Protocol):
    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        """One decision per live episode, None where the context is full and the episode must end."""
        ...

    def forget(self, slot: int) -> None:
        """The episode in ``slot`` is over or starts again."""
        ...


@runtime_checkable
class PatientAgent(Agent, Protocol):
    """An agent that thinks about many episodes at once and answers each as soon as it knows."""

    def submit(self, lives: Sequence[Live]) -> list[int]:
        """Begin to think; gives the slots whose context is full, which get no decision."""
        ...

    def collect(self, timeout: float | None) -> list[tuple[int, Decision]]:
        """Slots and their decisions, as soon as there is one; see :meth:`gagpo.agents.engines.base.Engine.collect`."""
        ...


class LanguageAgent:
    """A language model that reads observations and writes responses."""

    def __init__(self, engine: Engine, context: Context, sampling: Sampling):
        self.engine = engine
        self.context = context
        self.sampling = sampling

    @property
    def conditions(self) -> dict[str, Any]:
        """How the model is spoken to and sampled from, as plain values; a result is only comparable under like ones."""
        return {
            **self.context.conditions,
            "max_tokens": self.sampling.max_tokens,
            "temperature": self.sampling.temperature,
            "top_p": self.sampling.top_p,
            "dtype": self.engine.dtype,
        }

    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        requests = [self._request(live) for live in lives]
        asked = [request for request in requests if request is not None]
        responses = iter(self.engine.generate(asked, self.sampling))
        return [None if request is None else self._decision(request, next(responses)) for request in requests]

    def submit(self, lives: Sequence[Live]) -> list[int]:
        requests = [self._request(live) for live in lives]
        self.engine.submit([request for request in requests if request is not None], self.sampling)
        return [live.slot for live, request in zip(lives, requests, strict=True) if request is None]

    def collect(self, timeout: float | None) -> list[tuple[int, Decision]]:
        finished = self.engine.collect(timeout)
        return [(request.session, self._decision(request, response)) for request, response in finished]

    def _request(self, live: Live) -> Request | None:
        """What to ask the engine; None where prompt and response would not fit."""
        turns = live.episode.turns
        prompt_ids = self.context.prompt(turns, live.observation, live.info.get("admissible_actions"))
        if len(prompt_ids) + self.sampling.max_tokens > self.engine.max_length:
            return None
        if live.episode.temperature is None:
            live.episode.temperature = self.sampling.temperature
        seed = live.episode.seed << 16 | len(turns)
        return Request(live.slot, prompt_ids, seed, live.episode.temperature)

    def _decision(self, request: Request, out: Response) -> Decision:
        text = self.context.tokenizer.decode(out.ids, skip_special_tokens=True)
        action = parse(text, self.context.style.parser)
        return Decision(
            response=text,
            action=action or "",
            parsed=action is not None,
            prompt_ids=request.prompt_ids,
            response_ids=out.ids,
            logprobs=out.logprobs,
        )

    def forget(self, slot: int) -> None:
        self.engine.release(slot)


class RandomAgent:
    """Chooses uniformly among the admissible actions; the floor of every comparison.

    A world that cannot list its actions is built with ``expert="random"``: it then offers samples of them.
    """

    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        return [self._choose(live) for live in lives]

    def _choose(self, live: Live) -> Decision:
        actions = live.info.get("admissible_actions") or live.info.get("sampled_actions")
        if not actions:
            raise InvalidArgument(
                f"the random agent needs info['admissible_actions'], which task {live.episode.task!r} does not give; "
                'build the environment with expert="random", so that it offers samples'
            )
        rng = np.random.default_rng([live.episode.seed, len(live.episode.turns)])
        action = actions[int(rng.integers(len(actions)))]
        return Decision(response=action, action=action)

    def forget(self, slot: int) -> None:
        pass


class ExpertAgent:
    """Follows the environment's expert, and strays from it with probability ``noise`` to show how to recover.

    The environment must be built with an expert. Half of the stray moves are admissible actions, drawn uniformly; the
    others begin like the expert's and end like one of those ("take mug 1 from shelf 2"), which is mostly no action at
    all: a learner makes such slips, and has to see what comes after them. Neither are trainable.

    stubborn: probability that a move without effect is followed by another slip: the same move again, the expert's
        with another number, or one as above. Then the demonstration shows how to get out of a row of failures.
    """

    def __init__(self, noise: float = 0.0, stubborn: float = 0.0):
        for name, value in (("noise", noise), ("stubborn", stubborn)):
            if not 0 <= value <= 1:
                raise InvalidArgument(f"{name} is a probability, got {value}")
        self.noise = noise
        self.stubborn = stubborn

    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        return [self._follow(live) for live in lives]

    def _follow(self, live: Live) -> Decision | None:
        expert = live.info.get("expert_action")
        if expert is None:
            if "expert_action" not in live.info:
                raise InvalidArgument("the environment offers no expert; build it with expert=True if it has one")
            return None
        actions = live.info.get("admissible_actions")
        turns = live.episode.turns
        rng = np.random.default_rng([live.episode.seed, len(turns)])
        if self.stubborn and actions and turns and not turns[-1].valid and rng.random() < self.stubborn:
            action = _again(expert, turns[-1].action, actions, rng)
            return Decision(response=action, action=action, trainable=False)
        if self.noise and actions and rng.random() < self.noise:
            action = actions[int(rng.integers(len(actions)))]
            if rng.random() < 0.5:
                action = _slip(expert, action, rng)
            return Decision(response=action, action=action, trainable=False)
        return Decision(response=expert, action=expert)

    def forget(self, slot: int) -> None:
        pass


class CorrectedAgent:
    """A learner under an expert's eyes (as in DAgger, Ross et al. 2011): it plays, and the expert takes over at times.

    With probability ``refused`` after a move of the learner that had no effect, and ``takeover`` after any other, the
    expert makes the next one to four moves. Only those are trainable: they show what to do where the learner's own ways
    lead. An expert that came after every refusal would never show the way out of a second one.
    """

    def __init__(self, learner: LanguageAgent, takeover: float = 0.15, refused: float = 0.35):
        for name, share in (("takeover", takeover), ("refused", refused)):
            if not 0 <= share <= 1:
                raise InvalidArgument(f"{name} is a probability, got {share}")
        self.learner = learner
        self.expert = ExpertAgent()
        self.takeover, self.refused = takeover, refused
        self._left: dict[int, int] = {}  # by slot: moves that the expert still makes

    def decide(self, lives: Sequence[Live]) -> list[Decision | None]:
        taught = [self._is_taught(live) for live in lives]
        own = iter(self.learner.decide([live for live, mine in zip(lives, taught, strict=True) if not mine]))
        decisions: list[Decision | None] = []
        for live, mine in zip(lives, taught, strict=True):
            (decision,) = self.expert.decide([live]) if mine else (next(own),)
            if decision is not None and mine:
                context, turns = self.learner.context, live.episode.turns
                decision.prompt_ids = context.prompt(turns, live.observation, live.info.get("admissible_actions"))
                decision.response_ids = context.response(decision.response)
            elif decision is not None:
                decision.trainable = False
            decisions.append(decision)
        return decisions

    def _is_taught(self, live: Live) -> bool:
        turns = live.episode.turns
        left = self._left.get(live.slot, 0) if turns else 0
        if not left and turns and not turns[-1].trainable:
            rng = np.random.default_rng([live.episode.seed, len(turns), 1])
            if rng.random() < (self.takeover if turns[-1].valid else self.refused):
                left = int(rng.integers(1, 5))
        self._left[live.slot] = max(0, left - 1)
        return left > 0

    def forget(self, slot: int) -> None:
        self._left.pop(slot, None)
        self.learner.forget(slot)


def _again(meant: str, failed: str, actions: Sequence[str], rng: np.random.Generator) -> str:
    """One more slip after ``failed``: the same, what was meant with another number, or what :func:`_slip` gives."""
    kind = rng.integers(3)
    if kind == 0:
        return failed
    if kind == 1:
        numbers = list(re.finditer(r"\d+", meant))
        if numbers:
            place = numbers[int(rng.integers(len(numbers)))]
            return meant[: place.start()] + str(1 + int(rng.integers(12))) + meant[place.end() :]
    return _slip(meant, actions[int(rng.integers(len(actions)))], rng)


def _slip(meant: str, other: str, rng: np.random.Generator) -> str:
    """The first words of ``meant``, as many as chance will have it, and then those of ``other``."""
    words = meant.split(" ")
    kept = int(rng.integers(1, len(words))) if len(words) > 1 else 0
    return " ".join([*words[:kept], *other.split(" ")[kept:]])
