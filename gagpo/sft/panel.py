"""Measure a model during SFT: several episodes of a few training tasks, and what the result means for RL."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gagpo.agents.agent import Agent, RandomAgent
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, tasks_of
from gagpo.base.errors import GagpoError
from gagpo.data.episodes import Episode
from gagpo.envs.pool.opening import open_pool
from gagpo.eval.evaluate import choose_panel
from gagpo.settings import RunSettings, SftSettings
from gagpo.sft.demonstrations import environment_of, sft_of, success_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TASKS, TRIES = 16, 8
FEW = 16  # demonstrations
INVALID, CUT, CONTRAST = 0.1, 0.05, 0.25  # for RL: at most, at most, at least
MOST_STEPS = 4000  # without sft.steps
FIRST, GROWTH = 100, 1.5  # steps of the first round; factor by which each round lengthens the training so far
RISE, FALL = 20, 0.4  # steps over which a round's learning rate rises; share of the round over which it falls

Say = Callable[[str], None]


@dataclass(frozen=True)
class Measure:
    """Results of the panel; all but ``step`` are shares.

    step: training steps before it.
    success: episodes.
    invalid: turns without a valid action.
    cut: responses that reached the token limit.
    contrast: tasks of which some episodes succeed and some fail, which RL learns from.
    """

    step: int
    success: float
    invalid: float
    cut: float
    contrast: float

    @classmethod
    def of(cls, step: int, episodes: Sequence[Episode]) -> Measure:
        """Measure the panel's episodes; those of one task share their ``group``."""
        turns = [turn for episode in episodes for turn in episode.turns]
        groups: dict[int, list[bool]] = {}
        for episode in episodes:
            groups.setdefault(episode.group, []).append(episode.success)
        return cls(
            step,
            success_of(episodes),
            float(np.mean([not turn.valid for turn in turns])) if turns else 1.0,
            float(np.mean([turn.cut for turn in turns])) if turns else 0.0,
            float(np.mean([0 < sum(tries) < len(tries) for tries in groups.values()])),
        )


@dataclass(frozen=True)
class Expected:
    """Success rates on the panel's tasks that a model is compared with.

    chance: of random play.
    shown: of the demonstrations; None if unknown.
    imitable: see :class:`gagpo.sft.demonstrations.Demonstrations`.
    """

    chance: float
    shown: float | None
    imitable: bool = True

    def goal(self, chosen: bool) -> float:
        """What RL can begin with: two thirds of the way from chance to the demonstrations.

        A quarter where the demonstrations were lucky or are unknown, and where the number of steps is ``chosen``,
        since whoever chooses it decides how much is left to RL.
        """
        way = 1 / 4 if chosen or self.shown is None or not self.imitable else 2 / 3
        return self.chance + way * ((1.0 if self.shown is None else self.shown) - self.chance)

    @property
    def words(self) -> str:
        """Both rates, for people."""
        shown = "" if self.shown is None else f", demonstrations {percent(self.shown)}"
        return f"random play {percent(self.chance)}{shown}"


class Panel:
    """Plays a model on the same training tasks with the same seeds each time, and keeps the ``measures``."""

    def __init__(
        self, settings: RunSettings, tokenizer: PreTrainedTokenizerBase, expected: Expected, say: Say = lambda _: None
    ):
        self.settings, self.tokenizer, self.expected, self.say = settings, tokenizer, expected, say
        self.env = environment_of(settings)
        self.measures: list[Measure] = []

    @property
    def best(self) -> Measure | None:
        """The measure with the highest success rate, of equal ones the first; None before any."""
        return max(self.measures, key=lambda measure: measure.success, default=None)

    @property
    def enough(self) -> bool:
        """Whether RL can begin, or has nothing left to learn, by the last measure."""
        return bool(self.measures) and not self.faults(self.measures[-1])

    def measure(self, model: torch.nn.Module, step: int) -> None:
        """Play ``model`` after ``step`` steps; report and keep the result."""
        settings = self.settings
        engine = make_engine("transformers", model.eval(), self.tokenizer, dtype=settings.engine.dtype)
        agent = language_agent(engine, self.env, settings.rollout.sampling, **dict(settings.context))
        measure = Measure.of(step, play_panel(settings, agent, TRIES))
        self.measures.append(measure)
        self.say(self.words(measure))

    def words(self, measure: Measure) -> str:
        """The measure as a sentence."""
        groups = len(panel_tasks(self.settings))
        return (
            f"step {measure.step}: wins {percent(measure.success)} of {TRIES * groups} episodes of training tasks "
            f"({self.expected.words}); "
            f"{percent(measure.invalid)} of the turns are invalid, {percent(measure.cut)} of the responses are cut; "
            f"success differs between episodes in {round(groups * measure.contrast)} of {groups} tasks"
        )

    def faults(self, measure: Measure) -> list[str]:
        """What keeps RL from learning, each with the setting to change; [] if RL can begin.

        More steps would not give contrast to a model that nearly always wins. A model that wins most episodes knows
        the environment's language even if many of its turns are invalid; RL removes those.
        """
        limit, sft = self.settings.rollout.max_tokens, sft_of(self.settings)
        more = "raise sft.steps" if sft.steps else f"set sft.steps above {MOST_STEPS}"
        larger = "choose a larger sft.base_model" if sft.base_model else "raise sft.model.hidden_size"
        goal = self.expected.goal(sft.steps is not None)
        cut, invalid, success = (percent(x) for x in (measure.cut, measure.invalid, measure.success))
        found = []
        if measure.cut > CUT:
            found.append(f"{cut} of the responses are cut at rollout.max_tokens={limit}: raise it")
        if measure.invalid >= INVALID and measure.success < max(0.5, goal):
            found.append(f"{invalid} of the turns are invalid: {more}, then raise sft.episodes")
        if measure.success < goal:
            found.append(
                f"it wins {success}, and should win {percent(goal)} after these demonstrations: {more}, then {larger}"
            )
        if not found and measure.contrast < CONTRAST and measure.success < 0.5:
            found.append(
                f"success differs between episodes in only {percent(measure.contrast)} of the tasks: raise "
                f"rollout.temperature, or {more}"
            )
        return found

    def verdict(self) -> str:
        """What the last measure means for RL."""
        if not self.measures:
            return ""
        last = self.measures[-1]
        faults = self.faults(last)
        if faults:
            return "not ready for RL: " + "; ".join(faults)
        if last.contrast < CONTRAST:
            return (
                f"it wins {percent(last.success)} and episodes of a task hardly differ, so RL has little to learn: "
                "raise sft.mistake_rate, or choose harder tasks"
            )
        return "ready for RL: it knows the language of the environment, and some episodes of a task succeed"

    def state(self) -> list[dict[str, Any]]:
        """The measures so far, as plain values."""
        return [asdict(one) for one in self.measures]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        self.measures = [Measure(**one) for one in state]


def play_panel(settings: RunSettings, agent: Agent, tries: int, expert: str | bool = False) -> list[Episode]:
    """The episodes of ``agent`` on the panel's tasks, with the panel's own seeds; no more at once than in training."""
    environment = settings.only_environment.environment
    jobs = group_jobs(panel_tasks(settings), tries, sft_of(settings).seed, "warm start panel")
    kwargs = {**environment.kwargs, "split": environment.split, **({"expert": expert} if expert else {})}
    rolling = settings.rollout
    most = min(rolling.concurrency, rolling.tasks * rolling.group_size)
    with open_pool(environment.id, kwargs, workers=rolling.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=most)[0]


def panel_tasks(settings: RunSettings) -> list[str]:
    """Training tasks, evenly spread over the split."""
    tasks = tasks_of(environment_of(settings), settings.only_environment.environment.split)
    return list(choose_panel(tasks, TASKS).ids)


def expected(settings: RunSettings, episodes: Sequence[Episode], imitable: bool) -> Expected:
    """What a model that imitates ``episodes`` is compared with; without episodes, with chance.

    Demonstrations of the panel's own tasks count, because these may be harder than others. Few of them would be a noisy
    estimate, so the mean of all demonstrations counts as ``FEW`` more.
    """
    chance = chance_of(settings)
    if not episodes:
        return Expected(chance, None)
    tasks = set(panel_tasks(settings))
    own, of_all = [episode for episode in episodes if episode.task in tasks], success_of(episodes)
    shown = (sum(episode.success for episode in own) + FEW * of_all) / (len(own) + FEW)
    return Expected(chance, shown, imitable)


def chance_of(settings: RunSettings) -> float:
    """The success rate of random play on the panel; 0 if the environment offers no actions to choose from."""
    try:
        return success_of(play_panel(settings, RandomAgent(), TRIES, expert="random"))
    except GagpoError:
        return 0.0


def rounds(sft: SftSettings) -> list[int]:
    """Steps after which the panel is played: every ``every`` and the last; without ``steps`` ever less often."""
    if sft.steps is not None:
        return [*range(sft.every or sft.steps, sft.steps, sft.every or sft.steps), sft.steps]
    ends = [min(FIRST, MOST_STEPS)]
    while ends[-1] < MOST_STEPS:
        ends.append(min(MOST_STEPS, max(ends[-1] + FIRST, int(GROWTH * ends[-1]))))
    return ends


def round_rate(sft: SftSettings, step: int) -> float:
    """The learning rate without ``steps``: in every round it rises, stays, and falls before the panel is played.

    Warm restarts: Loshchilov & Hutter 2017, arXiv 1608.03983.
    """
    ends = [0, *rounds(sft)]
    number = bisect.bisect_right(ends, step)
    first, last = ends[number - 1], ends[number]
    rise, fall = (step - first + 1) / RISE, (last - step) / (FALL * (last - first))
    return (sft.learning_rate or 0.0) * min(1.0, rise, fall)


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:.0f} %"
