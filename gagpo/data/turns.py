"""The columns that credit is computed from. Shape suffixes: N = turns, E = episodes, K = response tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from gagpo.data.episode import Episode
from gagpo.data.errors import BadTurns
from gagpo.data.state_keys import StateKey, intern, state_ids

Coding = Literal["sum", "success"]
Scope = Literal["task", "batch"]
"""Where turns with equal state ids are in the same state: within their task group, or anywhere."""

DTYPES: dict[str, Any] = {
    **dict.fromkeys(["reward_N", "penalty_N", "entropy_N"], np.float64),
    **dict.fromkeys(["truncated_E", "success_E"], np.bool_),
    **dict.fromkeys(["episode_N", "group_E", "state_N", "tokens_N", "vote_E", "end_state_E", "action_N"], np.int64),
    "energy_K": np.float64,
    "env_E": np.int64,
    "text_N": np.object_,
}
DEFAULTS = {"penalty_N": 0.0, "tokens_N": 1, "truncated_E": False}


def as_array(values: Any) -> np.ndarray:
    """``values`` as an array; tensors are detached and moved to the CPU, bfloat16 as float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) == "torch.bfloat16" else values  # numpy has no such type
    return np.asarray(values)


def renumber(ids: np.ndarray) -> np.ndarray:
    """Map ids to 0..n-1 in their own order, int64; sorts only where their range is far wider than their number."""
    low = int(ids.min())
    span = int(ids.max()) - low + 1
    if span > 8 * len(ids):
        return np.unique(ids, return_inverse=True)[1]
    present = np.zeros(span, np.bool_)
    present[ids - low] = True
    return np.asarray((np.cumsum(present) - 1)[ids - low])


@dataclass(frozen=True, eq=False)
class Turns:
    """Columns of N turns of E episodes. Lists and tensors are converted, and every column is checked.

    reward_N: the environment's reward, penalties excluded.
    episode_N: 0..E-1, not decreasing; every episode has at least one turn.
    group_E: task group, any integers.
    state_N: state id; see :func:`intern`.
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

    Raises:
        BadTurns: the batch is empty, or a column has the wrong length, order or range.

    >>> turns = Turns(reward_N=[0, 10, 0], episode_N=[0, 0, 1], group_E=[7, 7])
    >>> turns.return_E.tolist()
    [10.0, 0.0]
    """

    reward_N: np.ndarray
    episode_N: np.ndarray
    group_E: np.ndarray
    state_N: np.ndarray | None = None
    penalty_N: np.ndarray = None  # type: ignore[assignment]
    tokens_N: np.ndarray = None  # type: ignore[assignment]
    truncated_E: np.ndarray = None  # type: ignore[assignment]
    success_E: np.ndarray | None = None
    vote_E: np.ndarray | None = None
    end_state_E: np.ndarray | None = None
    action_N: np.ndarray | None = None
    entropy_N: np.ndarray | None = None
    energy_K: np.ndarray | None = None
    env_E: np.ndarray | None = None
    text_N: np.ndarray | None = None

    def __post_init__(self) -> None:
        turns, episodes = _length(self.reward_N, "reward_N"), _length(self.group_E, "group_E")
        if turns == 0:
            raise BadTurns("the batch has no turns")
        for name, dtype in DTYPES.items():
            length = {"N": turns, "E": episodes}.get(name[-1])
            self._convert(name, dtype, int(self.tokens_N.sum()) if length is None else length)
        for name in ("penalty_N", "tokens_N"):
            low = np.flatnonzero(getattr(self, name) < 0)
            if low.size:
                raise BadTurns(f"{name} must not be negative; turn {low[0]} has {getattr(self, name)[low[0]]}")
        self._check_episodes(episodes)

    def _convert(self, name: str, dtype: Any, length: int) -> None:
        value = getattr(self, name)
        if value is None:
            if name in DEFAULTS:
                object.__setattr__(self, name, np.full(length, DEFAULTS[name], dtype))
            return
        array = as_array(value)
        if array.ndim != 1 or len(array) != length:
            raise BadTurns(f"{name} must have {length} entries in one dimension, got shape {array.shape}")
        if np.issubdtype(dtype, np.integer) and not np.issubdtype(array.dtype, np.integer):
            raise BadTurns(f"{name} holds integers, got {array.dtype}")
        array = array.astype(dtype)
        if dtype is np.float64 and not np.isfinite(array).all():
            place = int(np.flatnonzero(~np.isfinite(array))[0])
            raise BadTurns(f"{name} must be finite; turn {place} has {array[place]}")
        object.__setattr__(self, name, array)

    def _check_episodes(self, episodes: int) -> None:
        steps = np.diff(self.episode_N)
        outside = (self.episode_N < 0) | (self.episode_N >= episodes)
        if outside.any() or (steps < 0).any():
            turn = int(np.flatnonzero(outside)[0] if outside.any() else np.flatnonzero(steps < 0)[0] + 1)
            raise BadTurns(
                f"episode_N must run from 0 to {episodes - 1} (group_E has {episodes} entries) and not decrease; see "
                f"turn {turn}: put episodes one after the other, turns in order"
            )
        present = np.bincount(self.episode_N, minlength=episodes) > 0
        if not present.all():
            raise BadTurns(f"episode {int(np.argmin(present))} has no turns: leave it out")

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Episode],
        key: StateKey = "observation",
        penalty: float | Sequence[float] = 0.0,
        texts: bool = False,
    ) -> Turns:
        """The columns of ``episodes``. See :func:`votes` for ``vote_E``.

        key: definition of a state.
        penalty: cost of an invalid action, >= 0, one for all or one for each episode.
        texts: whether to give ``text_N``.

        Raises:
            BadTurns: there are no episodes, one failed or has no turns, or ``key="state"`` and a turn has no state.
        """
        penalties = [penalty] * len(episodes) if isinstance(penalty, int | float) else penalty
        if min(penalties, default=0.0) < 0:
            raise BadTurns(f"penalty must be at least 0, got {min(penalties)}")
        for number, episode in enumerate(episodes):
            if episode.outcome == "failed":
                raise BadTurns(f"episode {number} (task {episode.task!r}) failed in its environment: leave it out")
            if not episode.turns:
                raise BadTurns(f"episode {number} (task {episode.task!r}) has no turns: leave it out")
        turns = [turn for episode in episodes for turn in episode.turns]
        cost_N = [cost for episode, cost in zip(episodes, penalties, strict=True) for _ in episode.turns]
        state_N, end_state_E = state_ids(episodes, key)
        return cls(
            reward_N=np.array([turn.reward for turn in turns], np.float64),
            episode_N=np.repeat(np.arange(len(episodes)), [len(episode.turns) for episode in episodes]),
            group_E=np.array([episode.group for episode in episodes], np.int64),
            state_N=state_N,
            end_state_E=end_state_E,
            action_N=intern(turn.action for turn in turns),
            penalty_N=np.where([turn.valid for turn in turns], 0.0, np.array(cost_N, np.float64)),
            tokens_N=np.array([len(turn.response_ids) for turn in turns], np.int64),
            truncated_E=np.array([episode.outcome == "truncated" for episode in episodes], np.bool_),
            success_E=np.array([episode.success for episode in episodes], np.bool_),
            vote_E=votes(episodes),
            env_E=_envs(episodes),
            text_N=_texts(turn.observation for turn in turns) if texts else None,
        )

    def only(self, kept_E: np.ndarray) -> Turns:
        """The columns of the episodes in ``kept_E``, bool[E]."""
        kept_N = kept_E[self.episode_N]
        kept_K = np.repeat(kept_N, self.tokens_N)
        own: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            kept = {"E": kept_E, "K": kept_K}.get(column.name[-1], kept_N)
            own[column.name] = None if value is None else value[kept]
        return Turns(**{**own, "episode_N": renumber(own["episode_N"])})

    def by_env(self) -> Iterator[tuple[np.ndarray, Turns]]:
        """The episodes of each environment, bool[E], and their columns."""
        if self.env_E is None:
            yield np.ones(self.episodes, np.bool_), self
            return
        for env in np.unique(self.env_E):
            own_E = self.env_E == env
            yield own_E, self.only(own_E)

    def paying_success(self, chosen_E: bool | Sequence[bool] = True) -> Turns:
        """Replace rewards by 1 at the last turn of each success and 0 elsewhere; penalties stay.

        chosen_E: the episodes to change.
        """
        chosen_N = np.broadcast_to(chosen_E, self.episodes)[self.episode_N]
        success_N = self.last_N & self.succeeded_E[self.episode_N]
        return replace(self, reward_N=np.where(chosen_N, success_N, self.reward_N))

    @property
    def turns(self) -> int:
        return len(self.reward_N)

    @property
    def episodes(self) -> int:
        return len(self.group_E)

    @cached_property
    def net_reward_N(self) -> np.ndarray:
        """Rewards less penalties."""
        return np.asarray(self.reward_N - self.penalty_N)

    @cached_property
    def return_E(self) -> np.ndarray:
        """Sum of each episode's rewards less penalties."""
        return np.bincount(self.episode_N, self.net_reward_N, self.episodes)

    @property
    def succeeded_E(self) -> np.ndarray:
        """``success_E``; raises :class:`BadTurns` where it is missing."""
        if self.success_E is None:
            raise BadTurns("this credit needs the success of each episode: give success_E")
        return self.success_E

    @cached_property
    def group_index_E(self) -> np.ndarray:
        """Task group of each episode, numbered 0..G-1, int64[E]."""
        return renumber(self.group_E)

    @cached_property
    def groups(self) -> int:
        return int(self.group_index_E.max()) + 1

    @cached_property
    def group_index_N(self) -> np.ndarray:
        """Task group of each turn, numbered 0..G-1, int64[N]."""
        return np.asarray(self.group_index_E[self.episode_N])

    @cached_property
    def last_N(self) -> np.ndarray:
        """Whether the turn is its episode's last, bool[N]."""
        return np.asarray(np.diff(self.episode_N, append=-1) != 0)

    @property
    def named_N(self) -> np.ndarray:
        """``state_N``; raises :class:`BadTurns` where it is missing."""
        if self.state_N is None:
            raise BadTurns("this credit compares states: give state_N (see gagpo.credit.intern)")
        return self.state_N

    def states(self, scope: Scope = "task") -> np.ndarray:
        """State of each turn, numbered 0..S-1, int64[N]: equal ids within one task group, or within the ``batch``."""
        return self._states_N if scope == "task" else self._batch_states_N

    @cached_property
    def _batch_states_N(self) -> np.ndarray:
        return renumber(self.named_N)

    @cached_property
    def _states_N(self) -> np.ndarray:
        state_N = self._batch_states_N
        return renumber(self.group_index_N * (int(state_N.max()) + 1) + state_N)

    def coded_return_E(self, reward: Coding) -> np.ndarray:
        """Each episode's net return (``sum``), or its success as 0/1 without penalties (``success``), float64[E]."""
        return self.return_E if reward == "sum" else self.succeeded_E.astype(np.float64)


def votes(episodes: Sequence[Episode]) -> np.ndarray | None:
    """Id of each episode's vote, int64[E]; None where the successes are the votes of all groups.

    The vote is ``info["answer"]``, the environment's canonical form of the final answer, so wordings of one answer are
    one vote. In a task group with an episode without an answer it is the success.
    """
    answers = [str(episode.info.get("answer", "")).strip() for episode in episodes]
    unanswered = {episode.group for episode, answer in zip(episodes, answers, strict=True) if not answer}
    if all(episode.group in unanswered for episode in episodes):
        return None
    return intern(
        ("success", episode.success) if episode.group in unanswered else ("answer", answer)
        for episode, answer in zip(episodes, answers, strict=True)
    )


def _texts(texts: Iterable[str]) -> np.ndarray:
    """Texts as objects, which numpy must not convert to its own strings: those drop trailing NUL characters."""
    return np.fromiter(texts, np.object_)


def _envs(episodes: Sequence[Episode]) -> np.ndarray | None:
    """Environment id of each episode; None where there is only one."""
    names = [getattr(episode, "environment", None) for episode in episodes]
    return intern(names) if len(set(names)) > 1 else None


def _length(column: Any, name: str) -> int:
    try:
        return len(column)
    except TypeError:
        raise BadTurns(f"{name} must be a list or an array, got {type(column).__name__}") from None
