"""How a warm start measures itself: a few training tasks, several tries each, and what they say in words."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gagpo.agents.agent import Agent, RandomAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.episodes import Episode
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, make_world, tasks_of
from gagpo.base.errors import GagpoError
from gagpo.envs.remote.pool import open_pool
from gagpo.eval.evaluate import choose_panel
from gagpo.settings import RunSettings, WarmStartSettings
from gagpo.warm_start.players import success_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TRIES = 8
FEW = 16  # demonstrations
INVALID, CUT, CONTRAST = 0.1, 0.05, 0.25  # at most, at most, at least
FIRST, GROWTH = 100, 1.5  # steps of the first round, and by what a round lets the sum grow
RISE, FALL = 20, 0.4  # steps over which a round's rate rises, and share of the round over which it falls

Say = Callable[[str], None]


@dataclass(frozen=True)
class Measure:
    """What a panel showed after so many steps, all shares.

    contrast: of tasks of which some tries succeed and some do not: what reinforcement learns from.
    """

    step: int
    success: float
    invalid: float
    cut: float
    contrast: float

    @classmethod
    def of(cls, step: int, episodes: Sequence[Episode]) -> Measure:
        """Of the episodes of a panel; tries of one task share their ``group``."""
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
    """What a learner is held against: the success of chance and that of the demonstrations, both at the panel's tasks.

    imitable: whether a good imitation does as well as what it was shown; the lucky tries of chance hold luck as well.
    """

    chance: float
    shown: float
    imitable: bool = True

    @property
    def goal(self) -> float:
        """Two thirds of the way from chance to what was shown; a quarter where that was the luck of chance.

        A whole imitation of demonstrations that win two in five is two standard errors of a panel above it.
        """
        return self.chance + (2 / 3 if self.imitable else 1 / 4) * (self.shown - self.chance)


class Panel:
    """Plays a model on the same training tasks with the same seeds, now and again. ``measures`` is what it has seen."""

    def __init__(
        self, settings: RunSettings, tokenizer: PreTrainedTokenizerBase, expected: Expected, say: Say = lambda _: None
    ):
        assert settings.warm_start is not None
        self.settings, self.tokenizer, self.expected, self.say = settings, tokenizer, expected, say
        self.world = make_world(settings.only_world.environment.id, settings.only_world.environment.kwargs)
        self.measures: list[Measure] = []

    @property
    def enough(self) -> bool:
        """Whether the last measure says that reinforcement can begin, or that it has nothing left to do."""
        return bool(self.measures) and not self.faults(self.measures[-1])

    def measure(self, model: torch.nn.Module, step: int) -> None:
        """Play ``model``, which has taken so many steps, enter what came of it and say it."""
        settings, context = self.settings, self.settings.context
        engine = make_engine("transformers", model.eval(), self.tokenizer)
        agent = language_agent(
            engine,
            self.world,
            Sampling(settings.rollout.temperature, settings.rollout.max_tokens),
            style=context.style,
            history=context.history,
            template=context.template,
            calls=context.calls,
        )
        measure = Measure.of(step, play_panel(settings, agent, TRIES))
        self.measures.append(measure)
        self.say(self.words(measure))

    def words(self, measure: Measure) -> str:
        """The measure as a sentence."""
        expected, groups = self.expected, len(panel_tasks(self.settings))
        return (
            f"step {measure.step}: wins {percent(measure.success)} of {TRIES * groups} tries at training tasks (chance "
            f"{percent(expected.chance)}, demonstrations {percent(expected.shown)}); {percent(measure.invalid)} of the "
            f"turns are invalid, {percent(measure.cut)} of the answers cut; tries differ in "
            f"{round(groups * measure.contrast)} of {groups} tasks"
        )

    def faults(self, measure: Measure) -> list[str]:
        """What keeps reinforcement from learning, each with the setting to change; none where it can begin.

        A model that wins nearly always lacks contrast and nothing else: more steps would not give it any. One that
        wins most tries speaks the world's language, however often it is refused: reinforcement takes refusals out.
        """
        warm, limit = self.settings.warm_start, self.settings.rollout.max_tokens
        more = "warm_start.steps" if warm and warm.steps else "warm_start.most_steps"
        cut, invalid, success = (percent(x) for x in (measure.cut, measure.invalid, measure.success))
        found = []
        if measure.cut > CUT:
            found.append(f"{cut} of the answers are cut at rollout.max_tokens={limit}: raise it")
        if measure.invalid >= INVALID and measure.success < max(0.5, self.expected.goal):
            found.append(
                f"{invalid} of the turns are invalid, the world's language is not spoken yet: raise {more}, then "
                "warm_start.episodes"
            )
        if measure.success < self.expected.goal:
            found.append(
                f"it wins {success} where its demonstrations promise {percent(self.expected.goal)}, so its answers do "
                f"not follow the task yet: raise {more}, then warm_start.model.width"
            )
        if not found and measure.contrast < CONTRAST and measure.success < 0.5:
            found.append(
                f"tries differ in {percent(measure.contrast)} of the tasks only: raise rollout.temperature, or {more}"
            )
        return found

    def verdict(self) -> str:
        """What the last measure means for what comes next."""
        if not self.measures:
            return ""
        last = self.measures[-1]
        faults = self.faults(last)
        if faults:
            return "not ready for reinforcement: " + "; ".join(faults)
        if last.contrast < CONTRAST:
            return (
                f"it wins {percent(last.success)} and tries hardly differ, so little is left for reinforcement: raise "
                "warm_start.wander (or hasty), or give it harder tasks"
            )
        return "ready for reinforcement: it speaks the world's language, and some tries win while others do not"

    def state(self) -> list[dict[str, Any]]:
        """The measures so far, as plain values."""
        return [asdict(one) for one in self.measures]

    def restore(self, state: Sequence[dict[str, Any]]) -> None:
        """Go on from a :meth:`state`."""
        names = [field.name for field in fields(Measure)]
        self.measures = [Measure(**{name: one[name] for name in names}) for one in state]


def play_panel(settings: RunSettings, agent: Agent, tries: int, expert: str | bool = False) -> list[Episode]:
    """The episodes of ``agent`` on the panel's training tasks, with the panel's own seeds."""
    environment, warm = settings.only_world.environment, settings.warm_start
    assert warm is not None
    jobs = group_jobs(panel_tasks(settings), tries, warm.seed, "warm start panel")
    kwargs = {**environment.kwargs, "split": environment.split, **({"expert": expert} if expert else {})}
    with open_pool(environment.id, kwargs, workers=settings.rollout.workers) as pool:
        return rollout(agent, pool, jobs, concurrency=settings.rollout.concurrency)[0]


def panel_tasks(settings: RunSettings) -> list[str]:
    """Training tasks, evenly spread over the split; never those of a reported panel."""
    assert settings.warm_start is not None
    world = make_world(settings.only_world.environment.id, settings.only_world.environment.kwargs)
    return list(choose_panel(tasks_of(world, settings.only_world.environment.split), settings.warm_start.panel).ids)


def shown_at_panel(settings: RunSettings, episodes: Sequence[Episode]) -> float:
    """The success of demonstrations at the panel's own tasks, which may be harder than the others.

    Where few of them were shown chance decides, the more so with a hasty player among the players. So the mean of all
    demonstrations has the weight of ``FEW`` more of them.
    """
    tasks = set(panel_tasks(settings)) if settings.warm_start and settings.warm_start.panel else set()
    own, of_all = [episode for episode in episodes if episode.task in tasks], success_of(episodes)
    return (sum(episode.success for episode in own) + FEW * of_all) / (len(own) + FEW)


def chance(settings: RunSettings) -> float:
    """The success of random play on the panel; 0 where the world offers no actions to choose from."""
    try:
        return success_of(play_panel(settings, RandomAgent(), TRIES, expert="random"))
    except GagpoError:
        return 0.0


def rounds(warm: WarmStartSettings) -> list[int]:
    """After how many steps a panel is played: without ``steps`` often at first and then ever less often."""
    if not warm.panel:
        return []
    if warm.steps is not None:
        return sorted(
            {warm.steps * part // 4 for part in range(1, 5) if warm.steps * part // 4 >= FIRST} | {warm.steps}
        )
    ends = [min(FIRST, warm.most_steps)]
    while ends[-1] < warm.most_steps:
        ends.append(min(warm.most_steps, max(ends[-1] + FIRST, int(GROWTH * ends[-1]))))
    return ends


def round_rate(warm: WarmStartSettings, step: int) -> float:
    """The learning rate of a step without ``steps``: every round rises, stays, and falls before it is measured.

    A model whose rate has just fallen shows what it has learned (Loshchilov & Hutter 2017, arXiv 1608.03983).
    """
    ends = [0, *rounds(warm)]
    number = bisect.bisect_right(ends, step)
    first, last = ends[number - 1], ends[number]
    rise, fall = (step - first + 1) / RISE, (last - step) / (FALL * (last - first))
    return warm.learning_rate * min(1.0, rise, fall)


def percent(share: float) -> str:
    """A share in words."""
    return f"{100 * share:.0f} %"
