"""Wrap any other ``gymnasium.Env``: its seeds become tasks, its numbered actions get names, its observations are text.

Used for every registered environment whose class has no method ``tasks``; see :func:`gagpo.envs.lookup.find_spec`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from gagpo.base.errors import InvalidArgument
from gagpo.data import SUCCESS_ASSUMED
from gagpo.envs.base import Info, Outcome, Text, TextEnv
from gagpo.envs.tasks import Task, TaskSet

SEEDS = {"train": "0-999", "test": "1000-1099"}
"""The tasks where none are given."""

MAX_SEEDS = 100_000  # of a split
MAX_NUMBERS = 1000  # of an observation
MAX_TURNS = 1000  # of an environment that declares no limit

NOT_GUARANTEED = (
    "its tasks are seeds: a seed need not fix everything, states are unknown, there is no expert, and an episode "
    "succeeds if it ends by itself with a positive reward (or with success in info)"
)

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def seed_ranges(tasks: Mapping[str, object]) -> dict[str, range]:
    """The seeds of each split, from inclusive ranges.

    >>> seed_ranges({"train": "0-999"})
    {'train': range(0, 1000)}

    Raises:
        InvalidArgument: a value is not a range, or two splits share a seed.
    """
    ranges: dict[str, range] = {}
    for split, value in tasks.items():
        match = re.fullmatch(r"(\d{1,10})-(\d{1,10})", str(value))
        seeds = range(int(match[1]), int(match[2]) + 1) if match else range(0)
        if not 0 < len(seeds) <= MAX_SEEDS:
            raise InvalidArgument(
                f"tasks.{split} must be a range of at most {MAX_SEEDS} seeds, such as 0-999, got {value!r:.40}",
                key=f"tasks.{split}",
            )
        for (
            other_split,
            other_seeds,
        ) in ranges.items():  # ranges overlap if the later start is not after the earlier end
            if max(seeds[0], other_seeds[0]) <= min(seeds[-1], other_seeds[-1]):
                raise InvalidArgument(
                    f"tasks.{split} ({value}) and tasks.{other_split} share seeds",
                    key=f"tasks.{split}",
                    advice="separate them",
                )
        ranges[split] = seeds
    return ranges


class PlainEnv(TextEnv):
    """A ``gymnasium.Env`` without tasks.

    A text action is passed on. A numbered action is chosen by its name. Another text is an invalid turn and does not
    reach the environment, and neither does an action that ``info["action_mask"]`` rules out, or that is not in
    ``info["admissible_actions"]``, a list of names or numbers. With
    ``render_mode="ansi"`` the observation is what the environment renders.

    spec: the registration, in another process as JSON.
    tasks: the seeds of each split as inclusive ranges, by default :data:`SEEDS`.
    actions: the names of numbered actions, in order, by default the environment's own; or texts for random play.
    kwargs: arguments of the environment.

    Raises:
        InvalidArgument: actions without names, or a space that cannot be written as text.
    """

    splits: ClassVar[tuple[str, ...]] = ()  # an instance's are those of its tasks
    # The hash of the tasks covers ``tasks``. The observation is what the environment renders, if it does.
    immaterial = (TextEnv.immaterial - {"render_mode"}) | {"tasks"}
    code_arguments = frozenset({"spec"})

    def __init__(
        self,
        spec: EnvSpec | str,
        tasks: Mapping[str, object] | None = None,
        actions: Sequence[object] | None = None,
        split: str | None = None,
        max_turns: int = MAX_TURNS,
        expert: bool | str = False,
        render_mode: str | None = None,
        **kwargs: Any,
    ):
        self._seeds = seed_ranges(tasks or SEEDS)
        self._tasks: dict[str, TaskSet] = {}
        self.splits = tuple(self._seeds)  # type: ignore[misc]
        super().__init__(split or self.splits[0], max_turns, expert, render_mode)
        registration = EnvSpec.from_json(spec) if isinstance(spec, str) else spec
        self.name = registration.id
        if render_mode is not None:
            kwargs["render_mode"] = render_mode
        try:
            self.env = gymnasium.make(registration, disable_env_checker=True, **kwargs)
        except TypeError as error:
            raise InvalidArgument(str(error).partition(" was raised from")[0], where=self.name) from None
        for space in ("action_space", "observation_space"):
            if getattr(self.env.unwrapped, space, None) is None:
                raise InvalidArgument(f"has no {space}", where=self.name, advice=f"set self.{space} in its __init__")
        modes = [mode for mode in self.env.metadata.get("render_modes") or () if mode == "ansi"]
        if render_mode and not modes:
            raise InvalidArgument(
                "cannot be rendered as text",
                key="render_mode",
                where=self.name,
                advice="remove environment.kwargs.render_mode",
            )
        self.metadata = {"render_modes": modes}
        self._names = [" ".join(str(name).split()) for name in actions or _action_names(self.env.unwrapped)]
        self._numbered = not isinstance(self.env.action_space, spaces.Text | Text)
        if not self._numbered:
            self.action_space = self.env.action_space
        else:
            self._require_names()
            self._numbers = {name.casefold(): number for number, name in enumerate(self._names)}
            self._admissible = self._names  # at the moment
            self.instructions = f"The actions are: {', '.join(self._names)}."  # type: ignore[misc]
        if render_mode is None:
            _require_writable(self.env.observation_space, f"{self.name}: the observation")

    def tasks(self, split: str) -> TaskSet:
        if split not in self._tasks:
            named_seeds = ((f"{split}-{seed:07d}", seed) for seed in self._seeds[split])
            tasks = [Task(name, split, digest=f"{self.name} {seed}", source=str(seed)) for name, seed in named_seeds]
            self._tasks[split] = TaskSet(split, tasks)
        return self._tasks[split]

    def begin(self, task: Task) -> Outcome:
        observation, info = self.env.reset(seed=int(task.source))
        return self._outcome(observation, info)

    def act(self, action: str) -> Outcome:
        move: Any = action.encode(errors="replace").decode()  # an environment may echo a lone surrogate
        if self._numbered:
            number = self._numbers.get(" ".join(action.split()).casefold())
            if number is None:
                return self._refuse(f"There is no such action. {self.instructions}")
            if self._names[number] not in self._admissible:
                return self._refuse(f"That action is not possible here. Possible are: {', '.join(self._admissible)}.")
            move = int(self.env.action_space.start) + number  # type: ignore[attr-defined]
        observation, reward, terminated, truncated, info = self.env.step(move)
        outcome = self._outcome(observation, info, is_over=bool(terminated or truncated))
        outcome.reward = float(reward)
        outcome.terminated = bool(terminated)
        outcome.truncated = bool(truncated)
        outcome.success = bool(info.get("success", terminated and outcome.reward > 0))
        if "success" not in info and outcome.reward not in (0.0, 1.0):
            outcome.extras[SUCCESS_ASSUMED] = True
        outcome.valid = bool(info.get("valid", True))
        return outcome

    def close(self) -> None:
        self.env.close()

    def _outcome(self, observation: object, info: Info, is_over: bool = False) -> Outcome:
        text = _COLOUR.sub("", str(self.env.render())) if self.render_mode else written(observation)
        if not self._numbered:
            return Outcome(text, admissible_actions=self._names or info.get("admissible_actions"))
        self._admissible = self._names
        for key, names_of in (("action_mask", self._unmasked), ("admissible_actions", self._listed)):
            value = info.get(key)
            if value is None:
                continue
            self._admissible = names_of(value)
            if not self._admissible and not is_over:
                raise InvalidArgument(f"info[{key!r}] allows no action, but the episode continues", where=self.name)
            break
        return Outcome(text, admissible_actions=self._admissible)

    def _refuse(self, text: str) -> Outcome:
        return Outcome(text, valid=False, admissible_actions=self._admissible)

    def _listed(self, actions: object) -> list[str]:
        """The names of admissible actions that are given by name or number, each once, in the order of the names."""
        start = int(self.env.action_space.start)  # type: ignore[attr-defined]
        entries = list(actions) if isinstance(actions, Iterable) and not isinstance(actions, str) else [actions]
        numbers = set()
        for entry in entries:
            if isinstance(entry, str):
                number = self._numbers.get(" ".join(entry.split()).casefold())
            else:
                number = int(entry) - start if isinstance(entry, int | np.integer) else None
                if number is not None and not 0 <= number < len(self._names):
                    number = None
            if number is None:
                raise InvalidArgument(f"info['admissible_actions'] has no such action: {entry!r:.80}", where=self.name)
            numbers.add(number)
        return [self._names[number] for number in sorted(numbers)]

    def _unmasked(self, mask: object) -> list[str]:
        """The names of the actions whose entry in the mask is 1 or true."""
        entries = np.asarray(mask, dtype=object)
        number = len(self._names)
        if entries.shape != (number,) or not all(entry in (0, 1) for entry in entries):
            raise InvalidArgument(
                (
                    f"info['action_mask'] must have a 0 or 1 for each of the {number} actions (got "
                    f"{' '.join(str(mask).split()):.80})"
                ),
                key="action_mask",
                where=self.name,
            )
        return [name for name, allowed in zip(self._names, entries, strict=True) if allowed]

    def _require_names(self) -> None:
        """Raise InvalidArgument unless the actions are numbered and have different names."""
        space = self.env.action_space
        names = self._names
        if not isinstance(space, spaces.Discrete):
            raise InvalidArgument(
                f"actions of {space!s:.80} are not supported, only Text and Discrete", where=self.name
            )
        if len(names) != space.n or len({name.casefold() for name in names}) != len(names):
            reason = f"{len(names)} names are given" if names else "it does not name them"
            raise InvalidArgument(
                f"has {space.n} numbered actions, and {reason}",
                key="actions",
                where=self.name,
                advice=(
                    f"set environment.kwargs.actions to a list of {space.n} different names, in their order "
                    "(or -k 'actions=[left, ...]')"
                ),
            )


def _action_names(env: object) -> Iterable[object]:
    """The names that an environment gives its numbered actions: of Atari's method, an enumeration or a list."""
    meanings = getattr(env, "get_action_meanings", None)
    if callable(meanings):
        return list(meanings())
    names = getattr(env, "action_names", None) or getattr(env, "actions", None)
    if isinstance(names, enum.EnumMeta):
        members: list[enum.Enum] = list(names)
        return [member.name for member in sorted(members, key=lambda member: int(member.value))]
    are_texts = isinstance(names, list | tuple) and all(isinstance(member, str) for member in names)
    return names if are_texts and names is not None else []


def _require_writable(space: gymnasium.Space[Any], place: str) -> None:
    """Raise InvalidArgument for observations that are too large for a text, such as images, or of an unknown kind."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        subspaces = space.items() if isinstance(space, spaces.Dict) else enumerate(space)
        for name, subspace in subspaces:
            _require_writable(subspace, f"{place} {name!r}")
    elif isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        if np.prod(space.shape) > MAX_NUMBERS or len(space.shape) > len(_SEPARATORS[-1]):
            raise InvalidArgument(
                f"is an array of {space.shape}, too large for a text",
                where=place,
                advice=("wrap the environment, or set environment.kwargs.render_mode=ansi if it can render as text"),
            )
    elif isinstance(space, spaces.Sequence | spaces.Graph | spaces.OneOf):
        raise InvalidArgument(
            f"is a {type(space).__name__}, which is not supported", where=place, advice="wrap the environment"
        )


_SEPARATORS = ("", " ", "\n ", "\n ,")
"""Between the parts of an array, from the outermost to the innermost, by its number of dimensions."""


def written(observation: object) -> str:
    """An observation as text: texts first, then numbers and arrays, one line per row, the cells of a grid as ``2,5,0``.

    >>> print(written({"view": np.array([[1, 0], [2, 5]]), "mission": "go to the door"}))
    mission: go to the door
    view:
    1 0
    2 5
    """
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        texts_first = sorted(observation.items(), key=lambda item: not isinstance(item[1], str))
        fields = [(name, written(value)) for name, value in texts_first]
        return "\n".join(f"{name}:\n{text}" if "\n" in text else f"{name}: {text}" for name, text in fields)
    if isinstance(observation, tuple):
        return " ".join(written(value) for value in observation)
    array = np.asarray(observation)
    return _rows(array, _SEPARATORS[array.ndim])


def _rows(array: np.ndarray[Any, Any], separators: str) -> str:
    if not separators:
        return f"{array.item():.4g}" if array.dtype.kind == "f" else str(array.item())
    return separators[0].join(_rows(row, separators[1:]) for row in array)
