"""The columns that credit is computed from.

Columns and not objects: credits are whole-array operations, and a suffix says what a column has one entry for. They are
checked once, where they are built, so a credit need not check anything. Derived columns are cached, since several
credits and metrics of one batch read them.

Shape suffixes: N = turns, E = episodes, K = response tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from gagpo.base.nearest import hint
from gagpo.data.errors import BadTurns

Axis = Literal["turn", "episode", "token"]
EpisodeReward = Literal["sum", "success"]
Scope = Literal["task", "batch"]
"""Where turns with equal state ids are in the same state: within their task group, or anywhere."""


@dataclass(frozen=True)
class Column:
    """Declaration of a column.

    axis: what the column has one entry for.
    dtype: of its array.
    required: whether :meth:`Turns.of` must be given it.
    default: fills a column that is not given; None leaves it out.
    """

    axis: Axis
    dtype: Any
    required: bool = False
    default: float | None = None

    @property
    def optional(self) -> bool:
        return not self.required and self.default is None


UNSET: Any = None
"""Default of every column, so that ``Turns(...)`` fails with advice, not with a TypeError."""


def _column(axis: Axis, dtype: Any, required: bool = False, default: float | None = None) -> dict[str, Column]:
    return {"column": Column(axis, dtype, required, default)}


@dataclass(frozen=True, eq=False)
class Turns:
    """Columns of N turns of E episodes: arrays only, built and checked by :meth:`of`.

    reward_N: the environment's reward, penalties excluded.
    episode_N: 0..E-1, not decreasing; every episode has at least one turn.
    group_E: task group, any integers.
    state_N: state id; see :func:`gagpo.data.state_keys.intern`.
    penalty_N: >= 0, cost of an invalid action. GiGPO subtracts it after discounting, other credits from the reward.
    tokens_N: number of response tokens.
    truncated_E: whether a limit, not the environment, ended the episode.
    success_E: whether the task was solved.
    vote_E: id of the answer; by default the success.
    end_state_E: id of the state after the last turn.
    action_N: action id.
    entropy_N: mean entropy of the policy over the turn's tokens, nats, before any step.
    energy_K: ``1 - 2 pi + sum of squares`` of the policy's probabilities, before any step.
    env_E: environment id, in a batch of several environments.
    text_N: the observation, only for credit that compares texts.

    >>> turns = Turns.of(reward_N=[0, 10, 0], episode_N=[0, 0, 1], group_E=[7, 7])
    >>> turns.return_E.tolist()
    [10.0, 0.0]
    """

    reward_N: np.ndarray = field(default=UNSET, metadata=_column("turn", np.float64, required=True))
    episode_N: np.ndarray = field(default=UNSET, metadata=_column("turn", np.int64, required=True))
    group_E: np.ndarray = field(default=UNSET, metadata=_column("episode", np.int64, required=True))
    state_N: np.ndarray | None = field(default=UNSET, metadata=_column("turn", np.int64))
    penalty_N: np.ndarray = field(default=UNSET, metadata=_column("turn", np.float64, default=0.0))
    tokens_N: np.ndarray = field(default=UNSET, metadata=_column("turn", np.int64, default=1))
    truncated_E: np.ndarray = field(default=UNSET, metadata=_column("episode", np.bool_, default=False))
    success_E: np.ndarray | None = field(default=UNSET, metadata=_column("episode", np.bool_))
    vote_E: np.ndarray | None = field(default=UNSET, metadata=_column("episode", np.int64))
    end_state_E: np.ndarray | None = field(default=UNSET, metadata=_column("episode", np.int64))
    action_N: np.ndarray | None = field(default=UNSET, metadata=_column("turn", np.int64))
    entropy_N: np.ndarray | None = field(default=UNSET, metadata=_column("turn", np.float64))
    energy_K: np.ndarray | None = field(default=UNSET, metadata=_column("token", np.float64))
    env_E: np.ndarray | None = field(default=UNSET, metadata=_column("episode", np.int64))
    text_N: np.ndarray | None = field(default=UNSET, metadata=_column("turn", np.object_))

    def __post_init__(self) -> None:
        for name, column in COLUMNS.items():
            value = getattr(self, name)
            if not isinstance(value, np.ndarray) and not (value is None and column.optional):
                raise BadTurns(
                    f"Turns contains arrays, and {name} is none", key=name, advice="build it with Turns.of(...)"
                )

    @classmethod
    def of(cls, reward_N: Any, episode_N: Any, group_E: Any, **columns: Any) -> Turns:
        """Build the columns from lists, arrays or tensors; check lengths, order and ranges.

        columns: the optional columns by name; None is the same as leaving one out.

        Raises:
            BadTurns: the batch is empty, or a column is unknown or has the wrong length, order or range.
        """
        for name in columns:
            if name not in COLUMNS:
                raise BadTurns(f"there is no column {name!r}", advice=hint(name, COLUMNS))
        values = {"reward_N": reward_N, "episode_N": episode_N, "group_E": group_E, **columns}
        lengths: dict[Axis, int] = {"turn": _length(reward_N, "reward_N"), "episode": _length(group_E, "group_E")}
        if lengths["turn"] == 0:
            raise BadTurns("the batch has no turns")
        arrays: dict[str, np.ndarray | None] = {}
        for name, column in COLUMNS.items():
            if column.axis == "token":  # tokens_N stands before the columns of tokens
                lengths["token"] = int(arrays["tokens_N"].sum())  # type: ignore[union-attr]
            arrays[name] = _converted(name, column, values.get(name), lengths[column.axis])
        turns = cls(**arrays)  # type: ignore[arg-type]
        for name in ("penalty_N", "tokens_N"):
            negative = np.flatnonzero(getattr(turns, name) < 0)
            if negative.size:
                turn = negative[0]
                raise BadTurns(
                    f"{name} must not be negative", key=name, advice=f"turn {turn} has {getattr(turns, name)[turn]}"
                )
        _require_episodes_in_order(turns.episode_N, turns.num_episodes)
        return turns

    def with_columns(self, **columns: Any) -> Turns:
        """A copy with other columns, converted and checked like those of :meth:`of`."""
        return Turns.of(**{name: getattr(self, name) for name in COLUMNS} | columns)

    def select(self, mask_E: np.ndarray) -> Turns:
        """The columns of the episodes in ``mask_E``, bool[E]."""
        mask_N = mask_E[self.episode_N]
        masks: dict[Axis, np.ndarray] = {
            "turn": mask_N,
            "episode": mask_E,
            "token": np.repeat(mask_N, self.tokens_N),
        }
        selected: dict[str, Any] = {}
        for name, column in COLUMNS.items():
            value = getattr(self, name)
            selected[name] = None if value is None else value[masks[column.axis]]
        return Turns(**{**selected, "episode_N": renumber(selected["episode_N"])})

    def by_env(self) -> Iterator[tuple[np.ndarray, Turns]]:
        """The episodes of each environment, bool[E], and their columns."""
        if self.env_E is None:
            yield np.ones(self.num_episodes, np.bool_), self
            return
        for env in np.unique(self.env_E):
            mask_E = self.env_E == env
            yield mask_E, self.select(mask_E)

    def with_success_reward(self, mask_E: bool | Sequence[bool] = True) -> Turns:
        """Replace rewards by 1 at the last turn of each success and 0 elsewhere; penalties stay.

        mask_E: the episodes to change.
        """
        mask_N = np.broadcast_to(mask_E, self.num_episodes)[self.episode_N]
        success_N = self.last_N & self.required_success_E[self.episode_N]
        return self.with_columns(reward_N=np.where(mask_N, success_N, self.reward_N))

    # Counts -----------------------------------------------------------------------------------------------------------

    @property
    def num_turns(self) -> int:
        return len(self.reward_N)

    @property
    def num_episodes(self) -> int:
        return len(self.group_E)

    @cached_property
    def num_groups(self) -> int:
        return int(self.group_index_E.max()) + 1

    @cached_property
    def num_tokens(self) -> int:
        """Number of response tokens."""
        return int(self.tokens_N.sum())

    # Derived columns --------------------------------------------------------------------------------------------------

    @cached_property
    def net_reward_N(self) -> np.ndarray:
        """Rewards less penalties."""
        return np.asarray(self.reward_N - self.penalty_N)

    @cached_property
    def return_E(self) -> np.ndarray:
        """Sum of each episode's rewards less penalties."""
        return np.bincount(self.episode_N, self.net_reward_N, self.num_episodes)

    @cached_property
    def reward_E(self) -> np.ndarray:
        """Sum of each episode's rewards, penalties excluded."""
        return np.bincount(self.episode_N, self.reward_N, self.num_episodes)

    @property
    def required_success_E(self) -> np.ndarray:
        """``success_E``; raises :class:`BadTurns` where it is missing."""
        if self.success_E is None:
            raise BadTurns("this credit needs the success of each episode", key="success_E", advice="give success_E")
        return self.success_E

    @property
    def required_state_N(self) -> np.ndarray:
        """``state_N``; raises :class:`BadTurns` where it is missing."""
        if self.state_N is None:
            raise BadTurns(
                "this credit compares states", key="state_N", advice="give state_N (see gagpo.credit.intern)"
            )
        return self.state_N

    @cached_property
    def group_index_E(self) -> np.ndarray:
        """Task group of each episode, numbered 0..G-1, int64[E]."""
        return renumber(self.group_E)

    @cached_property
    def group_index_N(self) -> np.ndarray:
        """Task group of each turn, numbered 0..G-1, int64[N]."""
        return np.asarray(self.group_index_E[self.episode_N])

    @cached_property
    def last_N(self) -> np.ndarray:
        """Whether the turn is its episode's last, bool[N]."""
        return np.asarray(np.diff(self.episode_N, append=-1) != 0)

    @cached_property
    def first_token_N(self) -> np.ndarray:
        """Index of each turn's first response token, int64[N]."""
        return np.asarray(np.cumsum(self.tokens_N) - self.tokens_N)

    def states(self, scope: Scope = "task") -> np.ndarray:
        """State of each turn, numbered 0..S-1, int64[N]: equal ids within one task group, or within the ``batch``."""
        return self._task_state_N if scope == "task" else self._batch_state_N

    @cached_property
    def _batch_state_N(self) -> np.ndarray:
        return renumber(self.required_state_N)

    @cached_property
    def _task_state_N(self) -> np.ndarray:
        state_N = self._batch_state_N
        return renumber(self.group_index_N * (int(state_N.max()) + 1) + state_N)

    def episode_reward(self, kind: EpisodeReward) -> np.ndarray:
        """Each episode's net return (``sum``), or its success as 0/1 without penalties (``success``), float64[E]."""
        return self.return_E if kind == "sum" else self.required_success_E.astype(np.float64)


COLUMNS: dict[str, Column] = {column.name: column.metadata["column"] for column in fields(Turns)}


def _converted(name: str, column: Column, value: Any, length: int) -> np.ndarray | None:
    """A column's array. Raises: BadTurns for a wrong length, type or number."""
    if value is None:
        return None if column.optional else np.full(length, column.default, column.dtype)
    array = as_array(value)
    if array.ndim != 1 or len(array) != length:
        raise BadTurns(f"{name} must have {length} entries in one dimension, got shape {array.shape}", key=name)
    if np.issubdtype(column.dtype, np.integer) and not np.issubdtype(array.dtype, np.integer):
        raise BadTurns(f"{name} holds integers, got {array.dtype}", key=name)
    array = array.astype(column.dtype)
    if column.dtype is np.float64 and not np.isfinite(array).all():
        offset = int(np.flatnonzero(~np.isfinite(array))[0])
        raise BadTurns(f"{name} must be finite", key=name, advice=f"{column.axis} {offset} has {array[offset]}")
    return array


def _require_episodes_in_order(episode_N: np.ndarray, episodes: int) -> None:
    """Raise BadTurns unless ``episode_N`` runs from 0 to the last episode without a gap."""
    steps = np.diff(episode_N)
    outside = (episode_N < 0) | (episode_N >= episodes)
    if outside.any() or (steps < 0).any():
        turn = int(np.flatnonzero(outside)[0] if outside.any() else np.flatnonzero(steps < 0)[0] + 1)
        raise BadTurns(
            f"episode_N must run from 0 to {episodes - 1} (group_E has {episodes} entries) and not decrease",
            key="episode_N",
            advice=(f"see turn {turn}: put episodes one after the other, turns in order"),
        )
    present = np.bincount(episode_N, minlength=episodes) > 0
    if not present.all():
        raise BadTurns("has no turns", where=f"episode {int(np.argmin(present))}", advice="leave it out")


def _length(column: Any, name: str) -> int:
    try:
        return len(column)
    except TypeError:
        raise BadTurns(f"{name} must be a list or an array, got {type(column).__name__}", key=name) from None


def as_array(values: Any) -> np.ndarray:
    """``values`` as an array; tensors are detached and moved to the CPU, bfloat16 as float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # numpy has no such type
    return np.asarray(values)


def renumber(ids: np.ndarray) -> np.ndarray:
    """Map ids to 0..n-1 in their own order, int64.

    A table of the ids' range is several times faster than sorting; only ids that are spread far wider than their
    number are sorted.
    """
    low = int(ids.min())
    span = int(ids.max()) - low + 1
    if span > 8 * len(ids):
        return np.unique(ids, return_inverse=True)[1]
    present = np.zeros(span, np.bool_)
    present[ids - low] = True
    return np.asarray((np.cumsum(present) - 1)[ids - low])
