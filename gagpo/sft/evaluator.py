"""Measure a model during SFT: several episodes of a few training tasks, and what the result means for RL."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gagpo.agents.agent import Agent, RandomAgent
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, tasks_of
from gagpo.base.errors import GagpoError
from gagpo.data import Episode
from gagpo.envs.pool.opening import open_pool
from gagpo.eval.evaluate import choose_tasks
from gagpo.eval.measures import REWARD, SUCCESS, Measure
from gagpo.runs.headline import SUCCESS_RATE, Outcomes
from gagpo.settings import RunSettings, SftSettings
from gagpo.sft.demonstrations import environment_of, sft_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TASKS = 16
EPISODES_PER_TASK = 8
PRIOR_WEIGHT = 16  # demonstrations that the mean over all tasks counts as
MAX_INVALID = 0.1  # of the turns, MAX_CUT of the responses and MIN_CONTRAST of the tasks: what RL can begin with
MAX_CUT = 0.05
MIN_CONTRAST = 0.25
MAX_STEPS = 4000  # without sft.steps
FIRST_ROUND = 100  # steps
GROWTH = 1.5  # factor by which each round lengthens the training so far
RISE_STEPS = 20  # over which a round's learning rate rises
FALL_FRACTION = 0.4  # of a round, over which its learning rate falls

VALUES: dict[Measure, Callable[[Episode], float]] = {
    SUCCESS: lambda episode: float(episode.success),
    REWARD: lambda episode: float(episode.reward),
}
"""An episode in each measure that can decide."""

Report = Callable[[str], None]


@dataclass(frozen=True)
class StepMeasure:
    """Results on the evaluation tasks; all but ``step`` and ``reward`` are fractions.

    step: training steps before the evaluation.
    success: of the episodes that succeed.
    invalid: of the turns without a valid action.
    cut: of the responses that reached the token limit.
    contrast: of the tasks of which some episodes succeed and some fail, which RL learns from; where the mean reward
        decides, of those whose episodes earn different rewards.
    reward: mean of the episodes, where it decides in place of the success; else None.
    """

    step: int
    success: float
    invalid: float
    cut: float
    contrast: float
    reward: float | None = None

    @property
    def score(self) -> float:
        """What decides which model is the best: the mean reward or the success."""
        return self.success if self.reward is None else self.reward

    @classmethod
    def of(cls, step: int, episodes: Sequence[Episode], measure: Measure = SUCCESS) -> StepMeasure:
        """Measure the episodes of an evaluation; those of one task share their ``group``.

        measure: the one that decides, ``SUCCESS`` or ``REWARD``.
        """
        turns = [turn for episode in episodes for turn in episode.turns]
        groups: dict[int, set[float]] = {}
        for episode in episodes:
            groups.setdefault(episode.group, set()).add(VALUES[measure](episode))
        return cls(
            step,
            mean_of(episodes, SUCCESS),
            float(np.mean([not turn.valid for turn in turns])) if turns else 1.0,
            float(np.mean([turn.cut for turn in turns])) if turns else 0.0,
            float(np.mean([len(results) > 1 for results in groups.values()])),
            mean_of(episodes, measure) if measure == REWARD else None,
        )


@dataclass(frozen=True)
class Sentences:
    """How a measure is written in reports and verdicts; ``{}`` stands for its value.

    result: of an evaluation, followed by the episodes.
    value: of the model.
    goal: what it should be, after ``value``.
    compared: what episodes of a task may differ in.
    ready: that RL can begin.
    """

    result: str
    value: str
    goal: str
    compared: str
    ready: str


SENTENCES = {
    SUCCESS: Sentences(
        result="wins {} of",
        value="it wins {}",
        goal="should win {}",
        compared="success",
        ready="it knows the language of the environment, and some episodes of a task succeed",
    ),
    REWARD: Sentences(
        result="mean reward {} in",
        value="its mean reward is {}",
        goal="should be {}",
        compared="the reward",
        ready="most actions are valid, and the rewards of a task's episodes differ",
    ),
}


@dataclass(frozen=True)
class SuccessTarget:
    """Success rates, or mean rewards, on the evaluation tasks that a model is compared with.

    chance: of random actions.
    demonstrations: of the demonstrations; None if unknown.
    imitable: see :class:`gagpo.sft.demonstrations.Demonstrations`.
    measure_name: ``mean reward`` if the demonstrations report no success, else ``success``.
    """

    chance: float
    demonstrations: float | None
    imitable: bool = True
    measure_name: str = SUCCESS.name

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> SuccessTarget:
        """From plain values; earlier versions stored ``in_rewards`` in place of the measure's name."""
        target = dict(values)
        if target.pop("in_rewards", False):
            target["measure_name"] = REWARD.name
        return cls(**target)

    @property
    def measure(self) -> Measure:
        """The measure that decides: the mean reward or the success."""
        return REWARD if self.measure_name == REWARD.name else SUCCESS

    def goal(self, steps_are_set: bool) -> float:
        """What RL can begin with: two thirds of the way from chance to the demonstrations.

        A quarter of the way where the demonstrations include luck or their success is unknown, and where the user sets
        the number of steps, which decides how much is left to RL.
        """
        if steps_are_set or self.demonstrations is None or not self.imitable:
            fraction = 1 / 4
        else:
            fraction = 2 / 3
        demonstrations = 1.0 if self.demonstrations is None else self.demonstrations
        return self.chance + fraction * (demonstrations - self.chance)

    @property
    def words(self) -> str:
        """Both rates, for people."""
        demonstrations = "" if self.demonstrations is None else f", demonstrations {self.text(self.demonstrations)}"
        return f"random play {self.text(self.chance)}{demonstrations}"

    def text(self, score: float) -> str:
        """A success rate in per cent, or a mean reward."""
        return percent(score) if self.measure == SUCCESS else self.measure.unit.number(score)


class SftEvaluator:
    """Evaluates a model on the same training tasks with the same seeds each time, and keeps the ``measures``."""

    def __init__(
        self,
        settings: RunSettings,
        tokenizer: PreTrainedTokenizerBase,
        target: SuccessTarget,
        report: Report = lambda _: None,
    ):
        self.settings = settings
        self.tokenizer = tokenizer
        self.target = target
        self.report = report
        self.env = environment_of(settings)
        self.measures: list[StepMeasure] = []

    @property
    def best(self) -> StepMeasure | None:
        """The measure with the highest success rate or mean reward, of equal ones the first; None before any."""
        return max(self.measures, key=lambda measure: measure.score, default=None)

    @property
    def enough(self) -> bool:
        """Whether RL can begin, or has nothing left to learn, by the last measure."""
        return bool(self.measures) and not self.faults(self.measures[-1])

    def measure(self, model: torch.nn.Module, step: int) -> None:
        """Evaluate ``model`` after ``step`` steps; report and keep the result."""
        settings = self.settings
        engine = make_engine("transformers", model.eval(), self.tokenizer, dtype=settings.engine.dtype)
        with closing(engine):
            agent = language_agent(engine, self.env, settings.rollout.sampling, **dict(settings.context))
            episodes = run_evaluation(settings, agent, EPISODES_PER_TASK)
        measure = StepMeasure.of(step, episodes, self.target.measure)
        self.measures.append(measure)
        self.report(self.words(measure))

    def words(self, measure: StepMeasure) -> str:
        """The measure as a sentence."""
        groups = len(evaluation_tasks(self.settings))
        episodes = f"{EPISODES_PER_TASK * groups} episodes of training tasks ({self.target.words})"
        result = self._sentences.result.format(self.target.text(measure.score))
        return (
            f"step {measure.step}: {result} {episodes}; "
            f"{percent(measure.invalid)} of the turns are invalid, {percent(measure.cut)} of the responses are cut; "
            f"{self._sentences.compared} differs between episodes in "
            f"{round(groups * measure.contrast)} of {groups} tasks"
        )

    @property
    def _sentences(self) -> Sentences:
        return SENTENCES[self.target.measure]

    def _is_good(self, measure: StepMeasure, goal: float) -> bool:
        """Whether a model succeeds in most episodes, or reaches the goal in mean reward."""
        return measure.score >= (0.5 if self.target.measure == SUCCESS else goal)

    def faults(self, measure: StepMeasure) -> list[str]:
        """What keeps RL from learning, each with the setting to change; [] if RL can begin.

        More steps would not give contrast to a model that nearly always wins. A model that wins most episodes knows
        the environment's language even if many of its turns are invalid; RL removes those.
        """
        limit = self.settings.rollout.max_tokens
        sft = sft_of(self.settings)
        more_steps = "raise sft.steps" if sft.steps else f"set sft.steps above {MAX_STEPS}"
        larger_model = "choose a larger sft.base_model" if sft.base_model else "raise sft.model.hidden_size"
        goal = self.target.goal(sft.steps is not None)
        faults = []
        if measure.cut > MAX_CUT:
            cut = percent(measure.cut)
            faults.append(f"{cut} of the responses are cut at rollout.max_tokens={limit}: raise it")
        is_good = self._is_good(measure, goal)
        if measure.invalid >= MAX_INVALID and not (is_good and measure.score >= goal):
            invalid = percent(measure.invalid)
            faults.append(f"{invalid} of the turns are invalid: {more_steps}, then raise sft.episodes")
        if measure.score < goal:
            value = self._sentences.value.format(self.target.text(measure.score))
            target = self._sentences.goal.format(self.target.text(goal))
            faults.append(f"{value}, and {target} after these demonstrations: {more_steps}, then {larger_model}")
        if not faults and measure.contrast < MIN_CONTRAST and not is_good:
            faults.append(
                f"{self._sentences.compared} differs between episodes in only {percent(measure.contrast)} of the tasks"
                f": raise rollout.temperature, or {more_steps}"
            )
        return faults

    def verdict(self) -> str:
        """What the last measure means for RL."""
        if not self.measures:
            return ""
        measure = self.measures[-1]
        faults = self.faults(measure)
        if faults:
            return "not ready for RL: " + "; ".join(faults)
        if measure.contrast < MIN_CONTRAST:
            value = self._sentences.value.format(self.target.text(measure.score))
            return (
                f"{value} and episodes of a task hardly differ, so RL has little to learn: raise sft.mistake_rate, or "
                "choose harder tasks"
            )
        return f"ready for RL: {self._sentences.ready}"

    def state(self) -> list[dict[str, Any]]:
        """The measures so far, as plain values."""
        return [asdict(measure) for measure in self.measures]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        self.measures = [StepMeasure(**measure) for measure in state]


def run_evaluation(
    settings: RunSettings, agent: Agent, episodes_per_task: int, expert: str | bool = False
) -> list[Episode]:
    """The episodes of ``agent`` on the evaluation tasks, with fixed seeds; no more at once than in training."""
    environment = settings.only_environment.environment
    jobs = group_jobs(evaluation_tasks(settings), episodes_per_task, sft_of(settings).seed, "warm start panel")
    kwargs = {**environment.kwargs, "split": environment.split, **({"expert": expert} if expert else {})}
    rollout_settings = settings.rollout
    concurrency = min(rollout_settings.concurrency, rollout_settings.tasks * rollout_settings.group_size)
    with open_pool(environment.id, kwargs, workers=rollout_settings.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=concurrency)[0]


def evaluation_tasks(settings: RunSettings) -> list[str]:
    """Training tasks, evenly spread over the split."""
    tasks = tasks_of(environment_of(settings), settings.only_environment.environment.split)
    return list(choose_tasks(tasks, TASKS).ids)


def success_target(settings: RunSettings, episodes: Sequence[Episode], imitable: bool) -> SuccessTarget:
    """What a model that imitates ``episodes`` is compared with; without episodes, with chance.

    Demonstrations of the evaluation tasks count, because these may be harder than others. Few of them would be a noisy
    estimate, so the mean of all demonstrations counts as ``PRIOR_WEIGHT`` more.
    """
    measure = REWARD if has_rewards_only(episodes) else SUCCESS
    chance = chance_of(settings, measure)
    if not episodes:
        return SuccessTarget(chance, None)
    tasks = set(evaluation_tasks(settings))
    results = list(map(VALUES[measure], episodes))
    of_tasks = [result for episode, result in zip(episodes, results, strict=True) if episode.task in tasks]
    rate = (sum(of_tasks) + PRIOR_WEIGHT * float(np.mean(results))) / (len(of_tasks) + PRIOR_WEIGHT)
    return SuccessTarget(chance, rate, imitable, measure.name)


def has_rewards_only(episodes: Sequence[Episode]) -> bool:
    """Whether the mean reward of demonstrations decides, because they earn rewards and report no success."""
    outcomes = Outcomes.of([(episode.reward, bool(episode.success), episode.success_assumed) for episode in episodes])
    return SUCCESS_RATE not in outcomes.headline


def mean_of(episodes: Sequence[Episode], measure: Measure) -> float:
    """The success rate or the mean reward of episodes; 0 without any."""
    return float(np.mean(list(map(VALUES[measure], episodes)))) if episodes else 0.0


def chance_of(settings: RunSettings, measure: Measure = SUCCESS) -> float:
    """The success rate, or mean reward, of random actions on the evaluation tasks.

    0 if the environment cannot list or draw actions.
    """
    try:
        episodes = run_evaluation(settings, RandomAgent(), EPISODES_PER_TASK, expert="random")
    except GagpoError:
        return 0.0
    return mean_of(episodes, measure)


def rounds(sft: SftSettings) -> list[int]:
    """Steps after which the model is evaluated: every ``every`` and the last; without ``steps`` ever less often."""
    if sft.steps is not None:
        return [*range(sft.every or sft.steps, sft.steps, sft.every or sft.steps), sft.steps]
    ends = [min(FIRST_ROUND, MAX_STEPS)]
    while ends[-1] < MAX_STEPS:
        ends.append(min(MAX_STEPS, max(ends[-1] + FIRST_ROUND, int(GROWTH * ends[-1]))))
    return ends


def round_rate(sft: SftSettings, step: int) -> float:
    """The learning rate without ``steps``: in every round it rises, stays, and falls before the evaluation.

    Warm restarts: Loshchilov & Hutter 2017, arXiv 1608.03983.
    """
    ends = [0, *rounds(sft)]
    number = bisect.bisect_right(ends, step)
    start = ends[number - 1]
    end = ends[number]
    rise = (step - start + 1) / RISE_STEPS
    fall = (end - step) / (FALL_FRACTION * (end - start))
    return (sft.learning_rate or 0.0) * min(1.0, rise, fall)


def percent(fraction: float) -> str:
    """A fraction in per cent."""
    return f"{100 * fraction:.0f} %"
