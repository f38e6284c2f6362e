"""Playing a panel, the same for whoever plays: which tasks, what is in the journal already, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gagpo.agents.agent import Agent
from gagpo.agents.episodes import Episode, write_episodes
from gagpo.agents.prompts import STYLES
from gagpo.agents.setup import make_world, tasks_of
from gagpo.base import durable
from gagpo.envs import TaskSet, TextEnv
from gagpo.envs.lookup import playing
from gagpo.envs.remote.pool import open_pool
from gagpo.envs.tools import tools_of
from gagpo.eval.evaluate import choose_panel, evaluate
from gagpo.eval.journal import Journal
from gagpo.eval.request import EvaluationRequest
from gagpo.eval.results import EvalResult

EPISODES_AT_ONCE = 256


@dataclass(frozen=True)
class Player:
    """Whoever plays a panel.

    name: as the result calls it. identity: what tells it from any other player, as plain JSON values. temperature: that
    the result states; None where no tokens are sampled. kwargs: of the
    environments that it plays in. lockstep: it answers all who are ready together.
    session: entered before the first of so many episodes and left after the last.
    """

    agent: Agent
    name: str
    identity: Mapping[str, object]
    temperature: float | None
    kwargs: Mapping[str, object]
    lockstep: bool = True
    session: Callable[[Journal | None, int], AbstractContextManager[None]] = lambda journal, episodes: nullcontext()


@dataclass(frozen=True)
class EvaluationOutcome:
    """What came out. usage: requests, tokens and dollars at a server, those before an interruption included."""

    result: EvalResult
    episodes: list[Episode]
    journal: Path | None = None
    usage: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ChosenPanel:
    """The tasks of a completed request, a world to ask about them, and the arguments that it was built from."""

    request: EvaluationRequest
    kwargs: dict[str, object]
    world: TextEnv
    tasks: TaskSet

    @classmethod
    def of(cls, request: EvaluationRequest) -> ChosenPanel:
        """Raises :class:`gagpo.GagpoError` for an unknown environment or split, and for one without tasks."""
        environment = request.environment or ""
        kwargs = playing(environment, request.kwargs or {}, request.split)
        world = make_world(environment, kwargs)
        tasks = choose_panel(tasks_of(world, request.split or world.splits[-1]), request.tasks)
        return cls(request, kwargs, world, tasks)

    def play(self, player: Player) -> EvaluationOutcome:
        """Have ``player`` play all of it; an open journal's episodes are not played again."""
        request, material = self.request, self.world.material(player.kwargs)
        told = {"tools": [tool.spec for tool in tools_of(self.world)]} if tools_of(self.world) else {}
        key = {
            **request.facts(),
            **told,
            **player.identity,
            "kwargs": material,
            "panel": self.tasks.hash,
            "prompts": asdict(STYLES[request.context.style]),
            "instructions": getattr(self.world, "instructions", ""),
        }
        with (
            Journal(request.journals, key) if request.journals is not None else nullcontext() as journal,
            open_pool(request.environment or "", player.kwargs, workers=request.workers) as pool,
            player.session(journal, len(self.tasks) * request.tries),
        ):
            result, episodes = evaluate(
                player.agent,
                pool,
                self.tasks,
                environment=request.environment or "",
                kwargs=material,
                model=player.name,
                temperature=player.temperature,
                tries=request.tries,
                seed=request.seed,
                concurrency=request.concurrency or EPISODES_AT_ONCE,
                lockstep=player.lockstep,
                quiet=request.quiet,
                journal=journal,
            )
        if request.episodes is not None:
            with durable.replacing(request.episodes) as temporary:
                write_episodes(temporary, episodes)
        return EvaluationOutcome(result, episodes, journal.path if journal else None)
