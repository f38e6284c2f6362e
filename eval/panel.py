"""Playing a panel, the same for every model: its tasks, what the journal holds already, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gagpo.agents.agent import Agent
from gagpo.agents.episodes import Episode, write_episodes
from gagpo.agents.prompts import STYLES
from gagpo.agents.setup import make_env, tasks_of
from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.envs import TaskSet, TextEnv
from gagpo.envs.lookup import with_split
from gagpo.envs.remote.pool import open_pool
from gagpo.envs.tools import tools_of
from gagpo.eval.evaluate import choose_panel, evaluate
from gagpo.eval.journal import Journal
from gagpo.eval.request import EvaluationRequest
from gagpo.eval.results import EvalResult


class NothingMeasured(GagpoError):
    """Every episode failed in its environment, so there is no success rate."""


@dataclass(frozen=True)
class Player:
    """What plays a panel.

    agent: decides on the actions.
    name: how the result calls it.
    identity: what tells it from any other player, as plain JSON values.
    temperature: stated in the result; None where no tokens are sampled.
    kwargs: arguments of the environments that it plays in.
    lockstep: it answers all episodes that are ready together.
    concurrency: episodes at once, unless the request says.
    session: entered before the first of so many episodes, and left after the last.
    """

    agent: Agent
    name: str
    identity: Mapping[str, object]
    temperature: float | None
    kwargs: Mapping[str, object]
    lockstep: bool = True
    concurrency: int = 256
    session: Callable[[Journal | None, int], AbstractContextManager[None]] = lambda journal, episodes: nullcontext()


@dataclass(frozen=True)
class EvaluationOutcome:
    """What came out.

    result: the numbers.
    episodes: every episode, in the order of the panel.
    journal: the file that keeps the episodes, if any.
    usage: requests, tokens and dollars at a server, those before an interruption included.
    """

    result: EvalResult
    episodes: list[Episode]
    journal: Path | None = None
    usage: dict[str, float] = field(default_factory=dict)

    @property
    def failure(self) -> str:
        """What the environment raised in the first episode that failed; empty if none failed."""
        return next((str(one.info.get("error", "")) for one in self.episodes if one.outcome == "failed"), "")


@dataclass(frozen=True)
class ChosenPanel:
    """The tasks of a completed request.

    request: completed, see :meth:`gagpo.eval.request.EvaluationRequest.completed`.
    kwargs: arguments of the environment.
    environment: an environment to ask about the tasks.
    tasks: what is played.
    """

    request: EvaluationRequest
    kwargs: dict[str, object]
    env: TextEnv
    tasks: TaskSet

    @classmethod
    def of(cls, request: EvaluationRequest) -> ChosenPanel:
        """Raises :class:`gagpo.GagpoError` for an unknown environment or split, and for one without tasks."""
        environment = request.environment or ""
        kwargs = with_split(environment, request.kwargs or {}, request.split)
        env = make_env(environment, kwargs)
        tasks = choose_panel(tasks_of(env, request.split or env.splits[-1]), request.tasks)
        return cls(request, kwargs, env, tasks)

    def play(self, player: Player) -> EvaluationOutcome:
        """Have ``player`` play all of it; episodes that the journal holds are not played again.

        Raises:
            NothingMeasured: every episode failed in its environment. The journal forgets them.
        """
        request, material = self.request, self.env.material(player.kwargs)
        tools = tools_of(self.env)
        key = {
            **request.facts(),
            **({"tools": [tool.spec for tool in tools]} if tools else {}),
            **player.identity,
            "kwargs": material,
            "panel": self.tasks.hash,
            "prompts": asdict(STYLES[request.context.style]),
            "instructions": getattr(self.env, "instructions", ""),
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
                concurrency=request.concurrency or player.concurrency,
                lockstep=player.lockstep,
                quiet=request.quiet,
                journal=journal,
            )
        if request.episodes is not None:
            with durable.replacing(request.episodes) as temporary:
                write_episodes(temporary, episodes)
        outcome = EvaluationOutcome(result, episodes, journal.path if journal else None)
        if result.failed == result.episodes:
            if outcome.journal:
                outcome.journal.unlink()
            count = f"all {result.episodes} episodes" if result.episodes > 1 else "the only episode"
            raise NothingMeasured(f"{request.environment}: {count} failed in the environment: {outcome.failure}")
        return outcome
