"""The contract of every environment: a ``gymnasium.Env`` with text in and text out.

Subclass :class:`TextEnv` and write three methods (``tasks``, ``begin``, ``act``); exact task reset, turn limit,
seeding, ``info`` and misuse errors are taken care of here. Any other ``gymnasium.Env`` that keeps the same contract
works too.
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

from gagpo.base.errors import InvalidArgument, first_line
from gagpo.envs.saved import CannotRestore, SavedEpisode
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.tools import Tool

Info = dict[str, Any]  # what an environment says besides its observation: plain data
Kwargs = Mapping[str, Any]  # what an environment is built with

MarkovKey = Literal["observation", "state"]  # what of an answer tells where the environment is

SAMPLES = 16  # actions that an environment without a list of them offers to a random player


class Text(gymnasium.Space[str]):
    """All strings of at most ``max_length`` characters, in any script.

    ``gymnasium.spaces.Text`` admits only a fixed character set, which natural text leaves at once.

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
        """A random string of at most 32 characters; masks have no meaning here and are refused."""
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
    """What the environment answers to the start of an episode or to one action.

    observation: the text the agent sees next.
    reward: paid for this action (ignored at the start).
    terminated: the episode is over by the rules of the environment (not by the turn limit).
    success: the task is solved; only meaningful when the episode is over.
    valid: the action was understood and could be carried out; an invalid one may be penalised by a trainer.
    state: key of the exact environment state (equal keys = equal futures), or None where the environment cannot tell.
    admissible_actions: every action that would be valid now, or None where they cannot be listed.
    extras: further entries for ``info``.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    valid: bool = True
    state: str | None = None
    admissible_actions: list[str] | None = None
    extras: Info = field(default_factory=dict)


class TextEnv(gymnasium.Env[str, str]):
    """Base of the suite's environments.

    A subclass names its tasks with :meth:`tasks`, starts one with :meth:`begin` and answers an action with :meth:`act`.
    ``reset(seed=s, options={"task": id})`` starts exactly that task; without a task one is drawn from ``split`` by
    ``self.np_random``. After ``max_turns`` actions the episode is truncated.

    ``info`` always holds ``task``, ``task_type``, ``split``, ``success``, ``valid``, ``turn``, ``state`` and
    ``admissible_actions`` (the last two may be None), and ``expert_action`` when built with ``expert=True``. Where an
    environment has it (``has_hasty``), ``expert="hasty"`` is a player who knows the ways but skips what the task asks
    between finding and finishing, and who then believes to be done: the other half of a mixed lot of demonstrations.

    Where an environment can be put back (``can_restore``), :meth:`save` gives a token of where the episode stands, and
    :meth:`restore` goes on from there. Such an environment writes two more methods, ``snapshot`` and ``resume``.
    """

    metadata: Info = {"render_modes": ["ansi"]}  # noqa: RUF012 (declared so by gymnasium.Env)
    splits: ClassVar[tuple[str, ...]] = ("train", "test")
    immaterial: ClassVar[frozenset[str]] = frozenset(
        {"expert", "render_mode", "split"}
    )  # arguments that change no task
    choosing: ClassVar[frozenset[str]] = frozenset()  # arguments that only choose tasks, whose hash then says it all
    has_hasty: ClassVar[bool] = False
    markov_key: ClassVar[MarkovKey | None] = (
        None  # which key of an answer is a Markov state; None: see lookup.markov_key
    )
    can_restore: bool = False  # whether it can be put back into any state that it was in
    instructions: ClassVar[str] = ""  # what an instruction-tuned model must be told about the actions
    tools: Sequence[Tool] = ()  # what is called by name; without any, an action is a text. See gagpo.envs.tools.env

    def __init__(
        self,
        split: str = "train",
        max_turns: int = 50,
        expert: bool | str = False,
        render_mode: str | None = None,
    ):
        if split not in self.splits:
            raise InvalidArgument(
                f"{type(self).__name__} has no split {split!r}; choose one of {', '.join(self.splits)}"
            )
        if max_turns < 1:
            raise InvalidArgument(f"max_turns must be at least 1, got {max_turns}")
        if expert not in (False, True, "random") and not (expert == "hasty" and self.has_hasty):
            hint = 'False, True, "hasty" or "random"' if self.has_hasty else 'False, True or "random"'
            raise InvalidArgument(f"{type(self).__name__} has no expert {expert!r}; choose {hint}")
        self.observation_space = Text()
        self.action_space = Text()
        self.split = split
        self.max_turns = max_turns
        self.with_expert = bool(expert) and expert != "random"
        self.with_samples = expert == "random"
        self.hasty = expert == "hasty"
        self.render_mode = render_mode
        self.task: Task | None = None
        self.turn = 0
        self._over = True
        self._observation = ""
        self._valid = True

    # What a subclass writes -------------------------------------------------------------------------------------------

    def tasks(self, split: str) -> TaskSet:
        """The tasks of ``split``, sorted by id, with content digests; raises ValueError for an unknown split."""
        raise NotImplementedError

    def begin(self, task: Task) -> Outcome:
        """Start ``task``; every random choice comes from ``self.np_random``."""
        raise NotImplementedError

    def act(self, action: str) -> Outcome:
        """Carry out ``action``, which is any string whatsoever; an unknown one is answered, never raised about."""
        raise NotImplementedError

    def expert_action(self) -> str | None:
        """The expert's next action in the present situation, or None where there is none or it believes to be done."""
        return None

    def sample_action(self, rng: np.random.Generator) -> str:
        """An action that somebody without any idea might try; environments that cannot list their actions offer this."""
        self.action_space.seed(int(rng.integers(2**31)))
        return self.action_space.sample()

    def snapshot(self) -> Any:
        """What :meth:`resume` needs to know beyond the task, as plain JSON; only for an environment that ``can_restore``."""
        raise NotImplementedError

    def resume(self, snapshot: Any) -> Outcome:
        """Go on from a ``snapshot``, right after ``begin`` of its task.

        What this returns says how things stand; its ``observation`` and ``valid`` are filled in by the caller. What
        ``begin`` drew from ``self.np_random`` need not be what it drew then: a snapshot holds what came of it.
        """
        raise NotImplementedError

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        """Whether an environment built so answers whatever is said within milliseconds, so that the pool may step it in
        the caller's own process, where nothing could end it. Only the suite's own environments are asked."""
        return False

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        """Arguments that change nothing beside these others: the size of what is generated where files are given."""
        return frozenset()

    @classmethod
    def material(cls, kwargs: Kwargs) -> dict[str, Any]:
        """The constructor's arguments that say which problems are played, and how, defaults included.

        Left out is what has no effect beside the others. Two results are of the same panel where they agree on the
        hash of the tasks and on all of this but what is ``choosing``.
        """
        parameters = inspect.signature(cls).parameters.values()
        defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
        left_out = cls.immaterial | cls.without_effect(kwargs)
        return {name: value for name, value in (defaults | dict(kwargs)).items() if name not in left_out}

    # What Gymnasium calls ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: Mapping[str, object] | None = None) -> tuple[str, Info]:
        """Start an episode. ``options`` may name a ``task`` (of any split) or a ``split`` to draw one from.

        Raises ``gagpo.envs.tasks.UnknownTask`` with the nearest ids when the task does not exist.
        """
        super().reset(seed=seed)
        self._over = True  # a reset that fails leaves no episode to step
        self.task = self._choose(dict(options or {}))
        self.turn = 0
        outcome = self.begin(self.task)
        self._over = False
        self._observation, self._valid = outcome.observation, outcome.valid
        return outcome.observation, self._info(outcome)

    def step(self, action: str) -> tuple[str, float, bool, bool, Info]:
        """Carry out one action; raises ``ResetNeeded`` after the end of an episode, TypeError if it is not a string."""
        if self._over:
            raise ResetNeeded("the episode is over (or none was started): call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action is a string, got {type(action).__name__}")
        self.turn += 1
        outcome = self.act(action)
        truncated = not outcome.terminated and self.turn >= self.max_turns
        self._over = outcome.terminated or truncated
        self._observation, self._valid = outcome.observation, outcome.valid
        return outcome.observation, float(outcome.reward), outcome.terminated, truncated, self._info(outcome)

    def save(self) -> bytes:
        """Where the present episode stands: a token for ``restore`` of any environment built alike, in any process.

        Raises :class:`~gagpo.envs.saved.CannotRestore` where the environment cannot be put back, ResetNeeded where no
        episode is under way.
        """
        self._require_restorable()
        if self._over or self.task is None:
            raise ResetNeeded("the episode is over (or none was started): there is nothing to save")
        task, random = self.task, self.np_random.bit_generator.state
        saved = SavedEpisode(
            *(type(self).__name__, task.id, task.split, task.digest, self.turn, self._observation, self._valid),
            random=dict(random),
            snapshot=self.snapshot(),
        )
        return saved.pack()

    def restore(self, token: bytes) -> tuple[str, Info]:
        """Put the environment back to where ``token`` was saved; returns what the agent saw there: observation and
        info.

        From there on everything is as it was then, byte for byte, for the same actions. Raises
        :class:`~gagpo.envs.saved.CannotRestore` for a token of another environment or task, and for a damaged one.
        """
        self._require_restorable()
        self._over = True  # a restore that fails leaves no episode to step
        saved = SavedEpisode.unpack(token)
        if saved.environment != type(self).__name__:
            raise CannotRestore(f"the token is of {saved.environment}, this is {type(self).__name__}")
        task = self._choose({"task": saved.task, "split": saved.split})
        if task.digest != saved.digest:
            raise CannotRestore(f"task {saved.task!r} has other content here than where the token was saved")
        if not 0 <= saved.turn < self.max_turns:
            raise CannotRestore(f"the token is of turn {saved.turn}, and episodes end here after {self.max_turns}")
        self.task, self.turn = task, saved.turn
        self.begin(task)
        try:
            outcome = self.resume(saved.snapshot)
            generator = np.random.PCG64()
            generator.state = saved.random  # type: ignore[assignment]  # which it checks
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise CannotRestore(
                f"the token is damaged, or of an environment built otherwise: {first_line(error)}"
            ) from error
        self.np_random = np.random.Generator(generator)
        outcome.observation, outcome.valid = saved.observation, saved.valid
        self._over = False
        self._observation, self._valid = outcome.observation, outcome.valid
        return outcome.observation, self._info(outcome)

    def _require_restorable(self) -> None:
        if not self.can_restore:
            raise CannotRestore(f"{type(self).__name__} cannot be put back into a state that it was in (can_restore)")

    def render(self) -> str | None:
        return self._observation if self.render_mode == "ansi" else None

    def _choose(self, options: Info) -> Task:
        wanted = options.pop("task", None)
        split = options.pop("split", self.split)
        if options:
            raise InvalidArgument(f"unknown reset option {sorted(options)[0]!r}; known options: task, split")
        if wanted is None:
            return self.tasks(split).draw(self.np_random)
        for name in dict.fromkeys((split, *self.splits)):
            tasks = self.tasks(name)
            if wanted in tasks:
                return tasks[wanted]
        return self.tasks(split)[wanted]  # raises UnknownTask with advice

    def _info(self, outcome: Outcome) -> Info:
        assert self.task is not None
        info = {
            "task": self.task.id,
            "task_type": self.task.type,
            "split": self.task.split,
            "turn": self.turn,
            "success": bool(outcome.success),
            "valid": bool(outcome.valid),
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
