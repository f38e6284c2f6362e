"""The episodes that SFT imitates: an expert's, an imperfect player's, or the best of random ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState, ExpertAgent, RandomAgent
from gagpo.agents.call_formats import find_format
from gagpo.agents.context import Context
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_env, tasks_of
from gagpo.agents.toolbox import Phrasing, Toolbox
from gagpo.base.errors import InvalidArgument
from gagpo.base.progress import track
from gagpo.data.episodes import Episode, Turn, episodes_in
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.envs.pool.opening import open_pool
from gagpo.envs.tools import separate, tools_of
from gagpo.model.loading import load_tokenizer
from gagpo.settings import RunSettings, SftSettings
from gagpo.sft.messages import half_character

LABEL = "warm start"  # part of every seed: another text gives other demonstrations
IMPERFECT_SHARE = 0.5  # default share of episodes by the imperfect player
RANDOM_MOVES = (0.1, 0.2, 0.3, 0.4, 0.5)  # shares that are tried
WINS = 0.4  # success rate that an expert with random moves should have, so that episodes of a task differ
_TRIED = 64  # episodes for each share that is tried
_KEPT = 4  # at most one of so many random episodes is imitated

Finished = Callable[[Episode], None]


@dataclass
class Demonstrations:
    """Episodes to imitate.

    episodes: responses are written as the learner writes them.
    mistakes: share of mistakes among them, as in ``sft.mistake_rate``.
    imitable: whether a good imitation succeeds as often; false for the best random episodes, which include luck.
    tokenized: whether their turns hold token ids already; then it is not known how often they succeeded.
    """

    episodes: list[Episode]
    mistakes: float
    imitable: bool = True
    tokenized: bool = False


def demonstrations(settings: RunSettings, quiet: bool = False) -> Demonstrations:
    """Play demonstrations on the training tasks of the run's only environment.

    The expert's solved episodes are kept, and all episodes with mistakes. A model that learns from both knows the
    environment's language, and RL teaches it which behaviour pays.

    Raises:
        InvalidArgument: the expert solves no episode, or all random episodes earn the same.
    """
    sft, kwargs = sft_of(settings), settings.only_environment.environment.kwargs
    env = environment_of(settings)
    names = shown_tasks(settings, env, sft.episodes)
    mistakes = 0.0 if sft.mistake_rate is None else sft.mistake_rate
    imitable = has_expert(env)
    with track("demonstrations", sft.episodes, "episodes", quiet) as meter:
        finished: Finished = lambda _: meter.advance()  # noqa: E731
        if not imitable:
            kept = lucky(settings, names, finished)
        elif env.has_imperfect:
            mistakes = IMPERFECT_SHARE if sft.mistake_rate is None else mistakes
            imperfect, agent = round(mistakes * len(names)), ExpertAgent(sft.noise)
            kept = expert_episodes(settings, kwargs, agent, names[imperfect:], f"{LABEL} True", finished)
            kept += imperfect_episodes(settings, kwargs, agent, names[:imperfect], f"{LABEL} hasty", finished)
        elif mistakes or sft.mistake_rate is None:
            careless = careless_expert(settings, names)
            mistakes = careless.share
            kept = play(settings, {**kwargs, "expert": True}, careless, names, f"{LABEL} True", finished)
        else:
            kept = expert_episodes(settings, kwargs, ExpertAgent(sft.noise), names, f"{LABEL} True", finished)
    kept = [episode for episode in kept if episode.turns]
    rephrase(kept, settings)
    return Demonstrations(kept, mistakes, imitable)


def of_file(settings: RunSettings, path: Path) -> Demonstrations:
    """The successful episodes of a file of episodes, at most ``sft.episodes``; invalid turns are not imitated.

    Raises: InvalidArgument for a damaged record, naming its line, and for a file without successes.
    """
    kept: list[Episode] = []
    for number, episode in enumerate(episodes_in(path), 1):
        if len(kept) == sft_of(settings).episodes:
            break
        if not episode.success or not episode.turns:
            continue
        if half := half_character([(turn.observation, turn.response) for turn in episode.turns]):
            raise InvalidArgument(f"{path}, line {number}: {half}")
        kept.append(episode)
    if not kept:
        raise InvalidArgument(f"{path} holds no successful episode to imitate")
    for turn in (turn for episode in kept for turn in episode.turns):
        turn.trainable = turn.valid
    rephrase(kept, settings)
    return Demonstrations(kept, mistakes=0.0)


# Players --------------------------------------------------------------------------------------------------------------


def expert_episodes(
    settings: RunSettings, kwargs: Kwargs, agent: Agent, tasks: Sequence[str], label: str, finished: Finished
) -> list[Episode]:
    """The episodes that the environment's expert solved; InvalidArgument if there are none."""
    if not tasks:
        return []
    played = play(settings, {**kwargs, "expert": True}, agent, tasks, label, finished)
    require_solved(played, settings)
    return [episode for episode in played if episode.success]


def imperfect_episodes(
    settings: RunSettings, kwargs: Kwargs, agent: Agent, tasks: Sequence[str], label: str, finished: Finished
) -> list[Episode]:
    """The episodes of the environment's imperfect player, solved or not."""
    return play(settings, {**kwargs, "expert": "imperfect"}, agent, tasks, label, finished) if tasks else []


class CarelessExpert:
    """The expert, with random moves that are imitated as well.

    share: probability of a random move.
    moves: moves to choose from in environments without admissible actions.
    """

    def __init__(self, share: float, moves: Sequence[str] = ()):
        self.share, self.moves = share, moves
        self.expert = ExpertAgent()

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._move(state, turn) for state, turn in zip(states, self.expert.decide(states), strict=True)]

    def _move(self, state: EpisodeState, turn: Turn | None) -> Turn | None:
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns), 2])
        actions = state.info.get("admissible_actions") or self.moves
        if turn is None or not actions or rng.random() >= self.share:
            return turn
        return Turn.acting(separate(actions[int(rng.integers(len(actions)))]))

    def forget(self, slot: int) -> None:
        pass


def careless_expert(settings: RunSettings, tasks: Sequence[str]) -> CarelessExpert:
    """The expert with ``sft.mistake_rate`` random moves; by default the share that succeeds nearest to ``WINS``."""
    wanted = sft_of(settings).mistake_rate
    kwargs = {**settings.only_environment.environment.kwargs, "expert": True}
    some = [tasks[i % len(tasks)] for i in range(_TRIED)]
    shown = play(settings, kwargs, ExpertAgent(), some, f"{LABEL} expert")
    require_solved(shown, settings)
    moves = sorted({turn.action for episode in shown for turn in episode.turns})
    if wanted is not None:
        return CarelessExpert(wanted, moves)

    def distance(share: float) -> float:
        played = play(settings, kwargs, CarelessExpert(share, moves), some, f"{LABEL} wander")
        return abs(success_of(played) - WINS)

    return CarelessExpert(min(RANDOM_MOVES, key=distance), moves)


def lucky(settings: RunSettings, tasks: Sequence[str], finished: Finished | None = None) -> list[Episode]:
    """The random episodes with more reward than the mean, at most the best quarter; InvalidArgument without any."""
    environment = settings.only_environment.environment
    kwargs = {**environment.kwargs, "expert": "random"}
    played = play(settings, kwargs, RandomAgent(), tasks, f"{LABEL} random", finished)
    mean = float(np.mean([episode.reward for episode in played]))
    better = [episode for episode in played if episode.reward > mean and episode.turns]
    if not better:
        raise InvalidArgument(
            f"{len(played)} random episodes of {environment.id} all had the same reward, so none is worth imitating: "
            "give the environment an expert_action or intermediate rewards"
        )
    better.sort(key=lambda episode: (-episode.reward, len(episode.turns)))
    kept = better[: max(1, len(played) // _KEPT)]
    for turn in (turn for episode in kept for turn in episode.turns):
        turn.trainable = turn.valid
    return kept


# Playing --------------------------------------------------------------------------------------------------------------


def sft_of(settings: RunSettings) -> SftSettings:
    """The section ``sft``, which must exist."""
    assert settings.sft is not None
    return settings.sft


def environment_of(settings: RunSettings) -> TextEnv:
    """The run's only environment."""
    environment = settings.only_environment.environment
    return make_env(environment.id, environment.kwargs)


def has_expert(env: TextEnv) -> bool:
    """Whether the environment has an expert."""
    return getattr(type(env), "expert_action", TextEnv.expert_action) is not TextEnv.expert_action


def shown_tasks(settings: RunSettings, env: TextEnv, count: int) -> list[str]:
    """``count`` training tasks in random order, repeated where there are fewer."""
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
    concurrency: int = 256,
    deterministic: bool = False,
) -> list[Episode]:
    """Play each of ``tasks`` of the training split once.

    kwargs: arguments of the environment.
    label: part of the episodes' seeds.
    """
    environment = settings.only_environment.environment
    jobs = group_jobs(tasks, 1, sft_of(settings).seed, label)
    with open_pool(environment.id, {**kwargs, "split": environment.split}, workers=settings.rollout.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=concurrency, deterministic=deterministic, on_finish=finished)[0]


def success_of(episodes: Sequence[Episode]) -> float:
    """The share of successes."""
    return float(np.mean([episode.success for episode in episodes])) if episodes else 0.0


def require_solved(episodes: Sequence[Episode], settings: RunSettings) -> None:
    """Raise :class:`InvalidArgument` if an expert solved nothing; the message includes the first error."""
    if any(episode.success for episode in episodes):
        return
    errors = [str(episode.info["error"]) for episode in episodes if "error" in episode.info]
    reason = f"; {len(errors)} failed, the first: {errors[0]}" if errors else ""
    raise InvalidArgument(
        f"the expert of {settings.only_environment.environment.id} solved none of {len(episodes)} episodes{reason}"
    )


# Phrasing -------------------------------------------------------------------------------------------------------------


def phrasing_of(settings: RunSettings) -> Phrasing:
    """How the learner writes its actions. The chat template of a new model writes calls in Hermes format."""
    env, base = settings.only_environment, sft_of(settings).base_model
    chosen = env.context
    prompt, environment = chosen.prompt, environment_of(settings)
    if not prompt.calls:
        return Phrasing(prompt, multiline=bool(getattr(environment, "multiline", False)))
    tools = tools_of(environment)
    if base is not None and chosen.calls == "auto":
        return Context(load_tokenizer(base), prompt, template=chosen.template, tools=tools).phrasing
    return Phrasing(prompt, Toolbox(tools, find_format("hermes" if chosen.calls == "auto" else chosen.calls)))


def rephrase(episodes: Sequence[Episode], settings: RunSettings) -> None:
    """Rewrite the responses from which the learner's parser would not read the action that was played."""
    phrasing = phrasing_of(settings)
    for turn in (turn for episode in episodes for turn in episode.turns):
        if phrasing.read(turn.response).action != turn.action:
            turn.response = phrasing.write(turn)
