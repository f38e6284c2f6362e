"""The episodes that SFT imitates: an expert's, a hasty player's, or the best of random ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState, ExpertAgent, RandomAgent
from gagpo.agents.call_formats import find_format
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.model import load_tokenizer
from gagpo.agents.prompts import STYLES
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_env, tasks_of
from gagpo.agents.toolbox import Phrasing, Toolbox
from gagpo.base.errors import InvalidArgument
from gagpo.base.progress import track
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.envs.remote.pool import open_pool
from gagpo.envs.tools import tools_of
from gagpo.settings import RunSettings, SftSettings

LABEL = "warm start"  # part of every seed: another text gives other demonstrations
HASTY = 0.5  # default share of episodes by the hasty player
RANDOM_MOVES = (0.1, 0.2, 0.3, 0.4, 0.5)  # shares that are tried; with more the expert's way is lost
WINS = 0.4  # success rate that an expert with random moves should have: episodes of a task then differ
_TRIED = 64  # episodes for each share that is tried
_KEPT = 4  # of so many random episodes at most one is imitated

Finished = Callable[[Episode], None]


@dataclass
class Demonstrations:
    """Episodes to imitate, and how they came about.

    episodes: in the learner's words.
    mistakes: share of mistakes among them, as in ``sft.mistakes``.
    imitable: whether a good imitation succeeds as often; false of the best random episodes, which hold luck as well.
    """

    episodes: list[Episode]
    mistakes: float
    imitable: bool = True


def demonstrations(settings: RunSettings, quiet: bool = False) -> Demonstrations:
    """Play demonstrations on the training tasks of the run's only environment.

    Of the expert by itself, solved episodes are kept; whatever includes mistakes is kept whole. A model that learns
    from both knows the environment's language, and has to find out by RL which behaviour pays.

    Raises:
        InvalidArgument: the expert solves no episode, or all random episodes earn the same.
    """
    sft, kwargs = sft_of(settings), settings.only_environment.environment.kwargs
    env = make_env(settings.only_environment.environment.id, kwargs)
    names = shown_tasks(settings, env, sft.episodes)
    mistakes = 0.0 if sft.mistakes is None else sft.mistakes
    imitable = has_expert(env)
    with track("demonstrations", sft.episodes, "episodes", quiet) as meter:

        def finished(_: Episode) -> None:
            meter.advance()

        if not imitable:
            kept = lucky(settings, names, finished)
        elif env.has_hasty:
            mistakes = HASTY if sft.mistakes is None else mistakes
            hasty, agent = round(mistakes * len(names)), ExpertAgent(sft.noise)
            kept = expert_episodes(settings, kwargs, agent, names[hasty:], f"{LABEL} True", finished)
            kept += hasty_episodes(settings, kwargs, agent, names[:hasty], f"{LABEL} hasty", finished)
        elif mistakes or sft.mistakes is None:
            careless = careless_expert(settings, names)
            mistakes = careless.share
            kept = play(settings, {**kwargs, "expert": True}, careless, names, f"{LABEL} True", finished)
        else:
            kept = expert_episodes(settings, kwargs, ExpertAgent(sft.noise), names, f"{LABEL} True", finished)
    kept = [episode for episode in kept if episode.turns]
    in_learner_words(kept, settings)
    return Demonstrations(kept, mistakes, imitable)


# Who plays -----------------------------------------------------------------------------------------------------------


def expert_episodes(
    settings: RunSettings, kwargs: Kwargs, agent: Agent, tasks: Sequence[str], label: str, finished: Finished
) -> list[Episode]:
    """What the environment's expert solved of ``tasks``.

    Raises:
        InvalidArgument: it solved nothing.
    """
    if not tasks:
        return []
    played = play(settings, {**kwargs, "expert": True}, agent, tasks, label, finished)
    require_solved(played, settings)
    return [episode for episode in played if episode.success]


def hasty_episodes(
    settings: RunSettings, kwargs: Kwargs, agent: Agent, tasks: Sequence[str], label: str, finished: Finished
) -> list[Episode]:
    """The episodes of the environment's hasty player, solved or not."""
    return play(settings, {**kwargs, "expert": "hasty"}, agent, tasks, label, finished) if tasks else []


class CarelessExpert:
    """The expert, with a share of random moves that are imitated as well.

    share: probability of a random move.
    said: moves to choose from where the environment lists no admissible actions.
    """

    def __init__(self, share: float, said: Sequence[str] = ()):
        self.share, self.said = share, said
        self.expert = ExpertAgent()

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._move(state, turn) for state, turn in zip(states, self.expert.decide(states), strict=True)]

    def _move(self, state: EpisodeState, turn: Turn | None) -> Turn | None:
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns), 2])
        actions = state.info.get("admissible_actions") or self.said
        if turn is None or not actions or rng.random() >= self.share:
            return turn
        action = actions[int(rng.integers(len(actions)))]
        return Turn.acting(action)

    def forget(self, slot: int) -> None:
        pass


def careless_expert(settings: RunSettings, tasks: Sequence[str]) -> CarelessExpert:
    """The expert with ``sft.mistakes`` random moves; absent: with the share whose success rate is nearest to ``WINS``.

    Raises:
        InvalidArgument: the expert by itself solves nothing.
    """
    kwargs, wanted = settings.only_environment.environment.kwargs, sft_of(settings).mistakes
    some = [tasks[i % len(tasks)] for i in range(_TRIED)]
    shown = play(settings, {**kwargs, "expert": True}, ExpertAgent(), some, f"{LABEL} expert")
    require_solved(shown, settings)
    said = sorted({turn.action for episode in shown for turn in episode.turns})
    if wanted is not None:
        return CarelessExpert(wanted, said)

    def distance(share: float) -> float:
        played = play(settings, {**kwargs, "expert": True}, CarelessExpert(share, said), some, f"{LABEL} wander")
        return abs(success_of(played) - WINS)

    return CarelessExpert(min(RANDOM_MOVES, key=distance), said)


def lucky(settings: RunSettings, tasks: Sequence[str], finished: Finished | None = None) -> list[Episode]:
    """Random episodes that earned more than the mean, the best quarter at most.

    Raises:
        InvalidArgument: all earned the same.
    """
    environment = settings.only_environment.environment
    kwargs = {**environment.kwargs, "expert": "random"}
    played = play(settings, kwargs, RandomAgent(), tasks, f"{LABEL} random", finished)
    mean = float(np.mean([episode.reward for episode in played]))
    better = [episode for episode in played if episode.reward > mean and episode.turns]
    if not better:
        raise InvalidArgument(
            f"{len(played)} random episodes of {environment.id} all earned the same, so there is nothing to imitate: "
            "give the environment an expert_action or intermediate rewards"
        )
    better.sort(key=lambda episode: (-episode.reward, len(episode.turns)))
    kept = better[: max(1, len(played) // _KEPT)]
    for turn in (turn for episode in kept for turn in episode.turns):
        turn.trainable = turn.valid
    return kept


# How it is played ----------------------------------------------------------------------------------------------------


def sft_of(settings: RunSettings) -> SftSettings:
    """The section ``sft``, which the caller has made sure of."""
    assert settings.sft is not None
    return settings.sft


def has_expert(env: TextEnv) -> bool:
    """Whether the environment says what an expert would do."""
    return getattr(type(env), "expert_action", TextEnv.expert_action) is not TextEnv.expert_action


def shown_tasks(settings: RunSettings, env: TextEnv, count: int) -> list[str]:
    """``count`` training tasks in random order, again from the start where there are fewer."""
    tasks = tasks_of(env, settings.only_environment.environment.split).require()
    order = np.random.default_rng([sft_of(settings).seed, 0]).permutation(len(tasks))
    return [tasks.ids[i] for i in itertools.islice(itertools.cycle(order), count)]


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
    """Play each of ``tasks`` once, in environments of the training split.

    kwargs: arguments of the environment.
    label: part of the episodes' seeds.
    """
    environment = settings.only_environment.environment
    jobs = group_jobs(tasks, 1, sft_of(settings).seed, label)
    with open_pool(environment.id, {**kwargs, "split": environment.split}, workers=settings.rollout.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=concurrency, lockstep=lockstep, on_finish=finished)[0]


def success_of(episodes: Sequence[Episode]) -> float:
    """The share of successes."""
    return float(np.mean([episode.success for episode in episodes])) if episodes else 0.0


def require_solved(episodes: Sequence[Episode], settings: RunSettings) -> None:
    """Raise :class:`InvalidArgument` where an expert solved nothing; the message holds the first error, if any."""
    if any(episode.success for episode in episodes):
        return
    errors = [str(episode.info["error"]) for episode in episodes if "error" in episode.info]
    reason = f"; {len(errors)} failed, the first: {errors[0]}" if errors else ""
    raise InvalidArgument(
        f"the expert of {settings.only_environment.environment.id} solved none of {len(episodes)} episodes{reason}"
    )


# How it is said ------------------------------------------------------------------------------------------------------


def phrasing_of(settings: RunSettings) -> Phrasing:
    """How the learner writes its actions. The chat template of a new model writes calls as Hermes does."""
    env, base = settings.only_environment, sft_of(settings).base
    chosen = env.context
    style = STYLES[chosen.style]
    if not style.calls:
        return Phrasing(style)
    tools = tools_of(make_env(env.environment.id, env.environment.kwargs))
    if base is not None and chosen.calls == "auto":
        return Context(load_tokenizer(base), style, template=chosen.template, tools=tools).phrasing
    return Phrasing(style, Toolbox(tools, find_format("hermes" if chosen.calls == "auto" else chosen.calls)))


def in_learner_words(episodes: Sequence[Episode], settings: RunSettings) -> None:
    """Rewrite every response from which the learner's parser would not read the action that was played."""
    phrasing = phrasing_of(settings)
    for turn in (turn for episode in episodes for turn in episode.turns):
        if phrasing.read(turn.response).action != turn.action:
            turn.response = phrasing.write(turn)
