"""The interface of every environment: a ``gymnasium.Env`` with text observations and text actions.

A subclass of :class:`TextEnv` implements ``tasks``, ``begin`` and ``act``. The base class handles task selection, the
turn limit, seeding, ``info`` and misuse. Any other ``gymnasium.Env`` with the same interface works too.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal
from zlib import crc32

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.envs.tasks import Task, TaskSet, unknown_split
from gagpo.envs.tools import Tool

Info = dict[str, Any]  # plain data that comes with an observation
Kwargs = Mapping[str, Any]  # constructor arguments of an environment

MarkovKey = Literal["observation", "state"]  # the entry that identifies the state of the environment

SAMPLES = 16  # actions offered to a random policy where the valid ones cannot be listed


class Text(gymnasium.Space[str]):
    """All strings of at most ``max_length`` characters, in any script.

    ``gymnasium.spaces.Text`` is limited to a fixed character set.

    >>> "Zoë's café, 100 % naïve" in Text()
    True
    >>> "too long" in Text(max_length=3)
    False
    """

    alphabet: ClassVar[str] = "abcdefghijklmnopqrstuvwxyz     0123456789.,[]<>éß漢"

    def __init__(self, max_length: int = 1_000_000, seed: int | np.random.Generator | None = None):
        self.max_length = max_length
        super().__init__(shape=(), dtype=None, seed=seed)

    def contains(self, x: object) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: object = None, probability: object = None) -> str:
        """Draw a random string of at most 32 characters. Masks are not supported."""
        if mask is not None or probability is not None:
            raise InvalidArgument("a Text space cannot be masked: sample() takes no mask or probability")
        length = int(self.np_random.integers(0, min(32, self.max_length) + 1))
        return "".join(self.np_random.choice(list(self.alphabet), size=length)) if length else ""

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"Text(max_length={self.max_length})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and other.max_length == self.max_length


@dataclass
class Outcome:
    """Response of the environment to the start of an episode or to an action.

    observation: the text the agent sees next.
    reward: for this action; ignored at the start.
    terminated: the episode is over by the rules of the environment, not by the turn limit.
    success: the task is solved; only meaningful at the end of the episode.
    valid: the action was understood and carried out; trainers may penalise invalid ones.
    state: key of the exact state (equal keys, equal futures), or None if unknown.
    admissible_actions: all valid actions, or None where they cannot be listed.
    extras: further entries for ``info``.
    truncated: the episode is cut short, by another limit than ``max_turns``.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    valid: bool = True
    state: str | None = None
    admissible_actions: list[str] | None = None
    extras: Info = field(default_factory=dict)
    truncated: bool = False


def _flag(name: str, value: object) -> bool:
    """A flag of an outcome. Raises InvalidArgument for anything else: the text ``"no"`` would count as a success."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgument(f"{name} must be True or False (got {value!r:.50})", key=name)
    return bool(value)


class TextEnv(gymnasium.Env[str, str]):
    """Base class of the environments.

    A subclass lists its tasks in :meth:`tasks`, starts one in :meth:`begin` and carries out an action in :meth:`act`.
    ``reset(seed=s, options={"task": id})`` starts that task; without a task, ``self.np_random`` draws one from
    ``split``. After ``max_turns`` actions the episode is truncated.

    ``info`` holds ``task``, ``task_type``, ``split``, ``success``, ``valid``, ``turn``, ``state`` and
    ``admissible_actions`` (the last two may be None), and ``expert_action`` when built with ``expert=True``. With
    ``has_imperfect``, ``expert="imperfect"`` is an expert that skips the steps between finding and finishing and then
    stops; its failed episodes are mixed into demonstrations.

    immaterial: arguments that change neither tasks nor observations, actions or rewards. All others are conditions of a
        result.
    choosing: arguments that only select tasks, so the hash of the tasks covers them.
    code_arguments: arguments that name a program, a function or a class to run.
    code_names: arguments that may name code as ``module:Name``; any other value is a name of this package or of an
        installed one.
    interface: arguments that decide how a model reads and writes. Where none is set, a model gets those of its run.
    markov_key: see :func:`gagpo.envs.lookup.markov_key`.
    clusters: what :meth:`cluster` names, in the plural, such as ``rooms``.
    instructions: description of the actions for an instruction-tuned model.
    multiline: whether an action may have several lines; a code fence around it is then removed.
    checks_arguments: whether its constructor takes further arguments and rejects the unknown ones itself.
    packages: optional modules that it needs, each with what to install, such as ``{"mcp": "gagpo[mcp]"}``.
    tools: tools that are called by name; without any, an action is a text (:mod:`gagpo.envs.tools.env`).
    concurrency: the most episodes that an evaluation runs at once by default; None for no limit of the environment.
    has_own_data: whether its tasks are the user's. Training holds some out where there is no validation split.
    sends_requests: whether its observations are requests of a program, which words its prompts and reads the responses.
    reward_columns: what reward functions may name of the task under way, such as ``answer``.
    """

    metadata: Info = {"render_modes": ["ansi"]}  # noqa: RUF012 (declared so by gymnasium.Env)
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    immaterial: ClassVar[frozenset[str]] = frozenset({"expert", "render_mode", "split"})
    choosing: ClassVar[frozenset[str]] = frozenset()
    code_arguments: ClassVar[frozenset[str]] = frozenset()
    code_names: ClassVar[frozenset[str]] = frozenset()
    interface: ClassVar[frozenset[str]] = frozenset()
    has_imperfect: ClassVar[bool] = False
    markov_key: ClassVar[MarkovKey | None] = None
    clusters: ClassVar[str] = ""
    instructions: ClassVar[str] = ""
    multiline: ClassVar[bool] = False
    checks_arguments: ClassVar[bool] = False
    packages: ClassVar[Mapping[str, str]] = {}
    tools: Sequence[Tool] = ()
    concurrency: int | None = None
    has_own_data: bool = False
    sends_requests: ClassVar[bool] = False

    def __init__(
        self, split: str = "train", max_turns: int = 50, expert: bool | str = False, render_mode: str | None = None
    ):
        if split not in self.splits:
            raise unknown_split(type(self).__name__, split, self.splits)
        if isinstance(max_turns, bool) or not isinstance(max_turns, int):
            raise InvalidArgument(f"max_turns must be an integer (got {max_turns!r:.80})", key="max_turns")
        if max_turns < 1:
            raise InvalidArgument(f"max_turns must be at least 1 (got {max_turns})", key="max_turns")
        if expert not in (False, True, "random") and not (expert == "imperfect" and self.has_imperfect):
            hint = 'False, True, "imperfect" or "random"' if self.has_imperfect else 'False, True or "random"'
            raise InvalidArgument(f"has no expert {expert!r}", where=type(self).__name__, advice=f"choose {hint}")
        self.observation_space = Text()
        self.action_space = Text()
        self.split = split
        self.max_turns = max_turns
        self.with_expert = bool(expert) and expert != "random"
        self.with_samples = expert == "random"
        self.imperfect = expert == "imperfect"
        self.render_mode = render_mode
        self.task: Task | None = None
        self.turn = 0
        self._over = True
        self._observation = ""

    # Implemented by subclasses ----------------------------------------------------------------------------------------

    def tasks(self, split: str) -> TaskSet:
        """The tasks of ``split``, sorted by id, with content digests. Raises ValueError for an unknown split."""
        raise NotImplementedError

    def default_split(self) -> str:
        """The split that is evaluated if none is named: the last that has tasks."""
        return next((split for split in reversed(self.splits) if len(self.tasks(split))), self.splits[-1])

    def begin(self, task: Task) -> Outcome:
        """Start ``task``. Every random choice comes from ``self.np_random``."""
        raise NotImplementedError

    def act(self, action: str) -> Outcome:
        """Carry out ``action``. It may be any string; for an unknown one, return an outcome instead of raising."""
        raise NotImplementedError

    def expert_action(self) -> str | None:
        """The expert's next action, or None without an expert or when the expert has finished."""
        return None

    @property
    def reward_columns(self) -> Mapping[str, object]:
        """Plain data of the task under way for reward functions (:mod:`gagpo.envs.rewarded`)."""
        return {}

    def sample_action(self, rng: np.random.Generator) -> str:
        """Draw an action for a random policy, where the valid actions cannot be listed."""
        self.action_space.seed(int(rng.integers(2**31)))
        return self.action_space.sample()

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        """Whether every action takes milliseconds, so that the pool may step the environment in the caller's process.

        Only asked of environments of this package: a step there cannot be interrupted.
        """
        return False

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        """Arguments without effect given the others, such as the number of generated tasks where files are given."""
        return frozenset()

    @classmethod
    def cluster(cls, task: str, kwargs: Kwargs) -> str | None:
        """What the task shares with others of its split and not with new ones, such as the room of a released game.

        Intervals and tests are over clusters then. None where each task stands alone.
        """
        return None

    @classmethod
    def material(cls, kwargs: Kwargs) -> dict[str, Any]:
        """The constructor arguments that determine the tasks and the rules, defaults included.

        Two results are comparable if the hash of their tasks and all of these except ``choosing`` are equal.
        """
        parameters = inspect.signature(cls).parameters.values()
        defaults = {
            parameter.name: parameter.default for parameter in parameters if parameter.default is not parameter.empty
        }
        immaterial = cls.immaterial | cls.without_effect(kwargs)
        return {name: value for name, value in (defaults | dict(kwargs)).items() if name not in immaterial}

    # Called by Gymnasium ----------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Mapping[str, object] | None = None) -> tuple[str, Info]:
        """Start an episode. ``options`` may contain a ``task`` (of any split) or a ``split`` to draw one from.

        Raises:
            UnknownTask: for an unknown task, with the nearest ids.
        """
        super().reset(seed=seed)
        self._over = True  # a reset that fails leaves no episode to step
        self.task = self._choose(dict(options or {}))
        self.turn = 0
        outcome = self.begin(self.task)
        self._over = False
        self._observation = outcome.observation
        return outcome.observation, self._info(outcome)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out one action.

        Raises:
            ResetNeeded: after the end of an episode.
            TypeError: if ``action`` is not a string.
            InvalidArgument: the environment's ``success`` or ``valid`` is not a bool.
        """
        if self._over:
            raise ResetNeeded("the episode is over (or none was started): call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action is a string, got {type(action).__name__}")
        self.turn += 1
        outcome = self.act(action)
        truncated = not outcome.terminated and (outcome.truncated or self.turn >= self.max_turns)
        self._over = outcome.terminated or truncated
        self._observation = outcome.observation
        return outcome.observation, float(outcome.reward), outcome.terminated, truncated, self._info(outcome)

    def render(self) -> str | None:
        return self._observation if self.render_mode == "ansi" else None

    def _choose(self, options: Info) -> Task:
        task_id = options.pop("task", None)
        split = options.pop("split", self.split)
        if options:
            raise InvalidArgument(f"unknown reset option {sorted(options)[0]!r}", advice="known options: task, split")
        if task_id is None:
            return self.tasks(split).draw(self.np_random)
        unavailable: GagpoError | None = None
        for name in dict.fromkeys((split, *self.splits)):
            try:
                tasks = self.tasks(name)
            except GagpoError as error:  # a split whose files are missing hides no task of another one
                unavailable = unavailable or error
                continue
            if task_id in tasks:
                return tasks[task_id]
        if unavailable is not None:
            raise unavailable
        return self.tasks(split)[task_id]  # raises UnknownTask with advice

    def _info(self, outcome: Outcome) -> Info:
        assert self.task is not None
        info = {
            "task": self.task.id,
            "task_type": self.task.type,
            "split": self.task.split,
            "turn": self.turn,
            "success": _flag("success", outcome.success),
            "valid": _flag("valid", outcome.valid),
            "state": outcome.state,
            "admissible_actions": outcome.admissible_actions,
            **outcome.extras,
        }
        if self.with_samples and outcome.admissible_actions is None and not self._over:
            rng = np.random.default_rng([crc32(self.task.id.encode("utf-8", "replace")), self.turn])
            info["sampled_actions"] = list(dict.fromkeys(self.sample_action(rng) for _ in range(SAMPLES)))
        if self.with_expert:
            info["expert_action"] = None if self._over else self.expert_action()
        return info
