"""The episodes that SFT imitates: an expert's, an imperfect expert's, or the best random episodes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gagpo.agents.agent import Agent, EpisodeState, ExpertAgent, RandomAgent
from gagpo.agents.call_formats import find_format
from gagpo.agents.context import Context, Interface
from gagpo.agents.encoding import encoding_defect
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_env, tasks_of
from gagpo.agents.toolbox import ActionFormat, Toolbox
from gagpo.base.errors import InvalidArgument
from gagpo.base.progress import track
from gagpo.data import Episode, Turn, episodes_in
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.envs.gateway.stored_episodes import require_no_program
from gagpo.envs.pool.opening import open_pool
from gagpo.envs.tools import separate, tools_of
from gagpo.model.loading import load_tokenizer
from gagpo.settings import RunSettings, SftSettings

LABEL = "warm start"  # part of every seed: another text gives other demonstrations
IMPERFECT_FRACTION = 0.5  # of the episodes, by the imperfect expert; the default
MISTAKE_RATES = (0.1, 0.2, 0.3, 0.4, 0.5)  # from which noisy_expert selects one
TARGET_SUCCESS = 0.4  # success rate of an expert with random actions, at which the episodes of a task differ
EPISODES_PER_RATE = 64  # to measure the success at a mistake rate
RANDOM_EPISODES_PER_DEMONSTRATION = 4  # at most one of so many random episodes is imitated

EpisodeCallback = Callable[[Episode], None]


@dataclass
class Demonstrations:
    """Episodes to imitate.

    episodes: responses are written as the learner writes them.
    mistakes: rate of mistakes among them, as in ``sft.mistake_rate``.
    imitable: whether a good imitation succeeds as often; false for the best random episodes, which include luck.
    tokenized: whether their turns contain token ids already; their success rate is then unknown.
    """

    episodes: list[Episode]
    mistakes: float
    imitable: bool = True
    tokenized: bool = False


def demonstrations(settings: RunSettings, quiet: bool = False) -> Demonstrations:
    """Run demonstrations on the training tasks of the run's only environment.

    The expert's solved episodes are kept, and all episodes with mistakes: SFT teaches the model the environment's
    language, and RL can then improve on the mistakes.

    Raises:
        InvalidArgument: the expert solves no episode, or all random episodes earn the same.
    """
    sft = sft_of(settings)
    kwargs = settings.only_environment.environment.kwargs
    env = environment_of(settings)
    names = demonstration_tasks(settings, env, sft.episodes)
    mistakes = 0.0 if sft.mistake_rate is None else sft.mistake_rate
    imitable = has_expert(env)
    with track("demonstrations", sft.episodes, "episodes", quiet) as meter:
        on_episode: EpisodeCallback = lambda _: meter.advance()  # noqa: E731
        if not imitable:
            episodes = best_random_episodes(settings, names, on_episode)
        elif env.has_imperfect:
            mistakes = IMPERFECT_FRACTION if sft.mistake_rate is None else mistakes
            num_imperfect = round(mistakes * len(names))
            agent = ExpertAgent(sft.noise)
            episodes = expert_episodes(settings, kwargs, agent, names[num_imperfect:], f"{LABEL} True", on_episode)
            episodes += imperfect_episodes(settings, kwargs, agent, names[:num_imperfect], f"{LABEL} hasty", on_episode)
        elif mistakes or sft.mistake_rate is None:
            noisy = noisy_expert(settings, names)
            mistakes = noisy.mistake_rate
            episodes = run_episodes(settings, {**kwargs, "expert": True}, noisy, names, f"{LABEL} True", on_episode)
        else:
            episodes = expert_episodes(settings, kwargs, ExpertAgent(sft.noise), names, f"{LABEL} True", on_episode)
    episodes = [episode for episode in episodes if episode.turns]
    rephrase(episodes, settings)
    return Demonstrations(episodes, mistakes, imitable)


def of_file(settings: RunSettings, path: Path) -> Demonstrations:
    """The successful episodes of a file of episodes, at most ``sft.episodes``; invalid turns are not imitated.

    Raises: InvalidArgument for a damaged record, naming its line, for a program's, and for a file without successes.
    """
    episodes: list[Episode] = []
    for number, episode in enumerate(episodes_in(path), 1):
        if len(episodes) == sft_of(settings).episodes:
            break
        if not episode.success or not episode.turns:
            continue
        require_no_program(path, episode.info)
        defect = encoding_defect([(turn.observation, turn.response) for turn in episode.turns])
        if defect:
            raise InvalidArgument(defect, where=f"{path}, line {number}")
        episodes.append(episode)
    if not episodes:
        raise InvalidArgument("holds no successful episode to imitate", where=path)
    for episode in episodes:
        episode.turns = [replace(turn, trainable=turn.valid) for turn in episode.turns]
    rephrase(episodes, settings)
    return Demonstrations(episodes, mistakes=0.0)


# Policies -------------------------------------------------------------------------------------------------------------


def expert_episodes(
    settings: RunSettings, kwargs: Kwargs, agent: Agent, tasks: Sequence[str], label: str, on_episode: EpisodeCallback
) -> list[Episode]:
    """The episodes that the environment's expert solved; InvalidArgument if there are none."""
    if not tasks:
        return []
    episodes = run_episodes(settings, {**kwargs, "expert": True}, agent, tasks, label, on_episode)
    require_solved(episodes, settings)
    return [episode for episode in episodes if episode.success]


def imperfect_episodes(
    settings: RunSettings, kwargs: Kwargs, agent: Agent, tasks: Sequence[str], label: str, on_episode: EpisodeCallback
) -> list[Episode]:
    """The episodes of the environment's imperfect expert, solved or not."""
    if not tasks:
        return []
    return run_episodes(settings, {**kwargs, "expert": "imperfect"}, agent, tasks, label, on_episode)


class NoisyExpert:
    """The expert, with random actions that are imitated as well.

    mistake_rate: probability of a random action.
    actions: to choose from in environments without admissible actions.
    """

    def __init__(self, mistake_rate: float, actions: Sequence[str] = ()):
        self.mistake_rate = mistake_rate
        self.actions = actions
        self.expert = ExpertAgent()

    def decide(self, states: Sequence[EpisodeState]) -> list[Turn | None]:
        return [self._act(state, turn) for state, turn in zip(states, self.expert.decide(states), strict=True)]

    def _act(self, state: EpisodeState, turn: Turn | None) -> Turn | None:
        rng = np.random.default_rng([state.episode.seed, len(state.episode.turns), 2])
        actions = state.info.get("admissible_actions") or self.actions
        if turn is None or not actions or rng.random() >= self.mistake_rate:
            return turn
        return Turn.of_actions(separate(actions[int(rng.integers(len(actions)))]))

    def forget(self, slot: int) -> None:
        pass


def noisy_expert(settings: RunSettings, tasks: Sequence[str]) -> NoisyExpert:
    """The expert with random actions at ``sft.mistake_rate``, by default the rate nearest to the target success."""
    mistake_rate = sft_of(settings).mistake_rate
    kwargs = {**settings.only_environment.environment.kwargs, "expert": True}
    sample = [tasks[i % len(tasks)] for i in range(EPISODES_PER_RATE)]
    expert_runs = run_episodes(settings, kwargs, ExpertAgent(), sample, f"{LABEL} expert")
    require_solved(expert_runs, settings)
    actions = sorted({turn.action for episode in expert_runs for turn in episode.turns})
    if mistake_rate is not None:
        return NoisyExpert(mistake_rate, actions)

    def distance(rate: float) -> float:
        episodes = run_episodes(settings, kwargs, NoisyExpert(rate, actions), sample, f"{LABEL} wander")
        return abs(success_of(episodes) - TARGET_SUCCESS)

    return NoisyExpert(min(MISTAKE_RATES, key=distance), actions)


def best_random_episodes(
    settings: RunSettings, tasks: Sequence[str], on_episode: EpisodeCallback | None = None
) -> list[Episode]:
    """The random episodes with more reward than the mean, at most the best quarter; InvalidArgument without any."""
    environment = settings.only_environment.environment
    kwargs = {**environment.kwargs, "expert": "random"}
    episodes = run_episodes(settings, kwargs, RandomAgent(), tasks, f"{LABEL} random", on_episode)
    mean = float(np.mean([episode.reward for episode in episodes]))
    better = [episode for episode in episodes if episode.reward > mean and episode.turns]
    if not better:
        raise InvalidArgument(
            (
                f"{len(episodes)} random episodes of {environment.id} all had the same reward, so none is "
                "worth imitating"
            ),
            advice="give the environment an expert_action or intermediate rewards",
        )
    better.sort(key=lambda episode: (-episode.reward, len(episode.turns)))
    best = better[: max(1, len(episodes) // RANDOM_EPISODES_PER_DEMONSTRATION)]
    for episode in best:
        episode.turns = [replace(turn, trainable=turn.valid) for turn in episode.turns]
    return best


# Episodes -------------------------------------------------------------------------------------------------------------


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


def demonstration_tasks(settings: RunSettings, env: TextEnv, count: int) -> list[str]:
    """``count`` training tasks in random order, repeated where there are fewer."""
    tasks = tasks_of(env, settings.only_environment.environment.split).require()
    order = np.random.default_rng([sft_of(settings).seed, 0]).permutation(len(tasks))
    return [tasks.ids[i] for i in itertools.islice(itertools.cycle(order), count)]


def run_episodes(
    settings: RunSettings,
    kwargs: Kwargs,
    agent: Agent,
    tasks: Sequence[str],
    label: str,
    on_episode: EpisodeCallback | None = None,
    concurrency: int = 256,
    deterministic: bool = False,
) -> list[Episode]:
    """Run one episode of each of ``tasks`` of the training split.

    kwargs: arguments of the environment.
    label: part of the episodes' seeds.
    """
    environment = settings.only_environment.environment
    jobs = group_jobs(tasks, 1, sft_of(settings).seed, label)
    with open_pool(environment.id, {**kwargs, "split": environment.split}, workers=settings.rollout.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=concurrency, deterministic=deterministic, on_finish=on_episode)[0]


def success_of(episodes: Sequence[Episode]) -> float:
    """The fraction of successful episodes; 0 without episodes."""
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


# Action format --------------------------------------------------------------------------------------------------------


def action_format_of(settings: RunSettings) -> ActionFormat:
    """How the learner writes its actions. The chat template of a new model writes calls in Hermes format."""
    base = sft_of(settings).base_model
    context = settings.only_environment.context
    prompt = context.prompt
    environment = environment_of(settings)
    if not prompt.calls:
        return ActionFormat(prompt, multiline=bool(getattr(environment, "multiline", False)))
    tools = tools_of(environment)
    if base is not None and context.calls == "auto":
        return Context(load_tokenizer(base), prompt, Interface.of(environment), template=context.template).action_format
    return ActionFormat(prompt, Toolbox(tools, find_format("hermes" if context.calls == "auto" else context.calls)))


def rephrase(episodes: Sequence[Episode], settings: RunSettings) -> None:
    """Rewrite the responses from which the learner's parser would not read the action that was carried out."""
    action_format = action_format_of(settings)
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            if action_format.read(turn.response).action != turn.action:
                episode.turns[number] = replace(turn, response=action_format.write(turn))
