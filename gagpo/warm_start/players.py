"""Who demonstrates in a world without a hasty player or without an expert: one that wanders, or chance."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState, ExpertAgent, RandomAgent
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.envs.remote.pool import open_pool
from gagpo.settings import RunSettings

WANDERS = (0.1, 0.2, 0.3, 0.4, 0.5)  # more would drown the way to the goal
WINS = 0.4  # what a wandering expert should win: tries of a task then end differently, and most can be done better
_TRIED = 64  # episodes in which a share is tried
_KEPT = 4  # of so many random tries at most one is learned from

Finished = Callable[[Episode], None]


def has_expert(world: TextEnv) -> bool:
    """Whether ``world`` says what an expert would do."""
    return getattr(type(world), "expert_action", TextEnv.expert_action) is not TextEnv.expert_action


class WanderingExpert:
    """The expert, who moves at will with probability ``wander``; a learner imitates both.

    A model that has learned from it speaks the world's language and knows the way, and leaves it now and then: which of
    the two pays it has to find out. A move at will is any admissible action, or one of ``said`` in a world that does
    not list its actions.
    """

    def __init__(self, wander: float, said: Sequence[str] = ()):
        self.wander, self.said = wander, said
        self.expert = ExpertAgent()

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._move(state, turn) for state, turn in zip(states, self.expert.decide(states), strict=True)]

    def _move(self, state: EpisodeState, turn: Turn | None) -> Turn | None:
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns), 2])
        actions = state.info.get("admissible_actions") or self.said
        if turn is None or not actions or rng.random() >= self.wander:
            return turn
        action = actions[int(rng.integers(len(actions)))]
        return Turn.acting(action)

    def forget(self, slot: int) -> None:
        pass


def wandering(settings: RunSettings, kwargs: Kwargs, tasks: Sequence[str], wander: float | None) -> WanderingExpert:
    """The expert of these tasks with its share of moves at will; None: the one that wins nearest to ``WINS``.

    kwargs: of the environment. Raises :class:`InvalidArgument` where the expert by itself solves nothing.
    """
    warm = settings.warm_start
    assert warm is not None
    some = [tasks[i % len(tasks)] for i in range(_TRIED)]
    shown = play(settings, {**kwargs, "expert": True}, ExpertAgent(), some, "warm start expert")
    require_solved(shown, settings)
    said = sorted({turn.action for episode in shown for turn in episode.turns})
    if wander is not None:
        return WanderingExpert(wander, said)

    def distance(share: float) -> float:
        played = play(settings, {**kwargs, "expert": True}, WanderingExpert(share, said), some, "warm start wander")
        return abs(success_of(played) - WINS)

    return WanderingExpert(min(WANDERS, key=distance), said)


def lucky(settings: RunSettings, kwargs: Kwargs, tasks: Sequence[str], label: str, finished: Finished) -> list[Episode]:
    """Random tries at ``tasks``, of which those that earned more than the mean are kept, the best fourth at most.

    Raises :class:`InvalidArgument` where chance never earns anything: there is nothing to tell the tries apart by.
    """
    played = play(settings, {**kwargs, "expert": "random"}, RandomAgent(), tasks, label, finished)
    mean = float(np.mean([episode.reward for episode in played]))
    better = [episode for episode in played if episode.reward > mean and episode.turns]
    if not better:
        raise InvalidArgument(
            f"{len(played)} random tries in {settings.only_world.environment.id} all earned the same, so none teaches "
            "anything: give the world an expert_action or a reward on the way, or name a warm_start.teacher"
        )
    better.sort(key=lambda episode: (-episode.reward, len(episode.turns)))
    kept = better[: max(1, len(played) // _KEPT)]
    for turn in (turn for episode in kept for turn in episode.turns):
        turn.trainable = turn.valid
    return kept


def play(
    settings: RunSettings,
    kwargs: Kwargs,
    agent: Agent,
    tasks: Sequence[str],
    label: str,
    finished: Finished | None = None,
    *,
    concurrency: int = 256,
    lockstep: bool = False,
) -> list[Episode]:
    """``agent`` at each of ``tasks`` once, in worlds of the training split built with ``kwargs``."""
    environment, warm = settings.only_world.environment, settings.warm_start
    assert warm is not None
    jobs = group_jobs(tasks, 1, warm.seed, label)
    with open_pool(environment.id, {**kwargs, "split": environment.split}, workers=settings.rollout.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=concurrency, lockstep=lockstep, on_finish=finished)[0]


def success_of(episodes: Sequence[Episode]) -> float:
    """The share of successes."""
    return float(np.mean([episode.success for episode in episodes])) if episodes else 0.0


def require_solved(episodes: Sequence[Episode], settings: RunSettings) -> None:
    """Raise :class:`InvalidArgument` where an expert has solved nothing; the message holds the first error, if any."""
    if any(episode.success for episode in episodes):
        return
    errors = [str(episode.info["error"]) for episode in episodes if "error" in episode.info]
    reason = f"; {len(errors)} failed, the first: {errors[0]}" if errors else ""
    raise InvalidArgument(
        f"the expert of {settings.only_world.environment.id} solved none of {len(episodes)} episodes{reason}"
    )
