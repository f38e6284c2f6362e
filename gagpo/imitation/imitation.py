"""Learning from an expert and from good earlier episodes, which add rows to the batch of an iteration."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gagpo.agents.agent import ChatFormat
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.setup import make_context
from gagpo.collecting.distributed_rollout import packed, unpacked
from gagpo.credit import Credit, Turns
from gagpo.credit.turns.grouping import group_mean
from gagpo.envs.base import TextEnv
from gagpo.learning.batch import Row, Supervision, build_rows
from gagpo.objectives.imitation import Replay
from gagpo.settings import RunSettings, SettingsError

SURROGATE = re.compile("[\ud800-\udfff]")
"""A lone surrogate, which tokenizers reject."""


@dataclass(frozen=True)
class LearningBatch:
    """The rows of one update.

    episodes: of the iteration, then the replayed ones.
    rows: of these episodes.
    credit: of their turns.
    supervision: rows of expert actions, None without an expert.
    stats: metrics of what was added.
    """

    episodes: Sequence[Episode]
    rows: list[Row]
    credit: Credit
    supervision: Supervision | None = None
    stats: dict[str, float] = field(default_factory=dict)


class Imitation:
    """Adds expert imitation and replay to an iteration's rows and credit; all ranks do the same.

    tokenizer: the policy's.
    environments: one of each, by name.
    """

    def __init__(self, settings: RunSettings, tokenizer: object, environments: Mapping[str, TextEnv]):
        algorithm = settings.algorithm
        self.weight, self.expert = algorithm.credit_weight, algorithm.expert
        self.iterations = settings.training.iterations
        self.formats = formats_of(settings, tokenizer, environments) if self.expert else {}
        self.replay = ReplayBuffer(algorithm.replay) if algorithm.replay else None

    def extended(self, episodes: Sequence[Episode], rows: list[Row], credit: Credit, iteration: int) -> LearningBatch:
        """The batch of ``iteration`` (from 0). rows, credit: of ``episodes``."""
        stats: dict[str, float] = {}
        mixed = replace(credit, advantage=self.weight * credit.advantage) if self.weight != 1 else credit
        supervision = None
        if self.expert is not None:
            coefficient = self.expert.at(iteration, self.iterations)
            supervision = Supervision(expert_rows(episodes, self.formats), coefficient)
            stats |= {"expert_coefficient": coefficient, **expert_metrics(episodes, supervision.rows)}
        if self.replay is not None:
            coefficient = self.replay.settings.at(iteration)
            again, above_E = self.replay.chosen()
            if again and coefficient > 0:
                rows, mixed = joined(rows, mixed, again, coefficient * above_E)
                episodes = [*episodes, *again]
            stats |= {"replay_coefficient": coefficient, "replayed_episodes": float(len(again))}
        return LearningBatch(episodes, rows, mixed, supervision, stats)

    def remember(self, episodes: Sequence[Episode], turns: Turns, credit: Credit, iteration: int) -> None:
        """Add the good episodes of ``iteration`` to the replay buffer. turns, credit: of ``episodes``."""
        if self.replay is not None:
            credit_E = group_mean(credit.advantage_N, turns.episode_N, turns.episodes)
            self.replay.add(episodes, credit_E, turns.return_E, iteration)


def formats_of(settings: RunSettings, tokenizer: object, environments: Mapping[str, TextEnv]) -> dict[str, ChatFormat]:
    """How the policy is prompted, by environment name ('' in a run with a single one)."""
    return {
        env.name: ChatFormat(make_context(tokenizer, environments.get(env.name), **dict(env.context)), env.max_tokens)
        for env in settings.all_environments
    }


# Expert (DAgger, arXiv 1011.0686) -------------------------------------------------------------------------------------


def require_expert(environments: Mapping[str, TextEnv], settings: RunSettings) -> None:
    """Raise SettingsError if the algorithm needs an expert and no environment has one; warn if only some have one.

    environments: one of each, by name.
    """
    if not settings.asks_expert:
        return
    ids = {env.name: env.environment.id for env in settings.all_environments}
    silent = [
        f"{name} ({ids[name]})" if name else ids[name]
        for name, env in environments.items()
        if isinstance(env, TextEnv) and type(env).expert_action is TextEnv.expert_action
    ]
    if len(silent) == len(environments):
        raise SettingsError(
            f"the algorithm learns from an expert, and {', '.join(silent)} has none: implement expert_action, "
            "or remove algorithm.expert"
        )
    if silent:
        warnings.warn(f"no expert in {', '.join(silent)} (expert_action is not implemented)", stacklevel=2)


def expert_rows(episodes: Sequence[Episode], formats: Mapping[str, ChatFormat]) -> list[Row]:
    """A row for every turn with an expert action: the policy's prompt, and that action as the response.

    Turns and groups are numbered as in :func:`gagpo.learning.batch.build_rows`. Actions that are longer than
    ``max_tokens`` or invalid text are skipped, because the policy cannot produce them.

    formats: how the policy is prompted, by environment name.
    """
    groups = sorted({episode.group for episode in episodes})
    rows: list[Row] = []
    number = tokens = 0
    for episode in episodes:
        chat = formats[episode.environment or ""]
        context = chat.context
        for turn in episode.turns:
            if turn.expert and not SURROGATE.search(turn.expert):
                response_ids = context.response(context.phrasing.write(Turn.acting(turn.expert)))
                first, count = len(turn.prompt_ids), len(response_ids)
                if count <= chat.max_tokens:
                    ids, offset_K = np.concatenate([turn.prompt_ids, response_ids]), np.arange(count)
                    numbers = (first + offset_K, np.full(count, number), tokens + offset_K)
                    group = groups.index(episode.group)
                    rows.append(Row(ids, *numbers, np.zeros(count, np.float32), group=group))
                    tokens += count
            number += 1
    return rows


def expert_metrics(episodes: Sequence[Episode], rows: Sequence[Row]) -> dict[str, float]:
    """The share of turns with an expert action, and the share of these in which the policy agreed."""
    turns = [turn for episode in episodes for turn in episode.turns]
    known = [turn for turn in turns if turn.expert]
    agreed = sum(turn.action == turn.expert for turn in known)
    return {"expert_turns": len(rows) / len(turns), "expert_agreement": agreed / max(1, len(known))}


# Replay ---------------------------------------------------------------------------------------------------------------


class ReplayBuffer:
    """Good episodes, oldest first, to be trained on again (SPEAR, arXiv 2509.22601).

    born, returns: the iteration and the return of each episode.
    baseline: mean return of the task group of each of the last episodes played, kept or not.
    """

    def __init__(self, settings: Replay):
        self.settings = settings
        self.episodes: list[Episode] = []
        self.born: list[int] = []
        self.returns: list[float] = []
        self.baseline: list[float] = []

    def add(self, episodes: Sequence[Episode], credit_E: np.ndarray, return_E: np.ndarray, iteration: int) -> None:
        """Keep the episodes whose credit is above the threshold, and the group means of all."""
        settings = self.settings
        for episode, credit, paid in zip(episodes, credit_E.tolist(), return_E.tolist(), strict=True):
            if credit > settings.threshold:
                self.episodes.append(episode)
                self.born.append(iteration)
                self.returns.append(paid)
        _, group_E = np.unique([episode.group for episode in episodes], return_inverse=True)
        mean_E = group_mean(return_E, group_E, len(episodes))[group_E]
        self.baseline = [*self.baseline, *mean_E.tolist()][-settings.baseline :]
        young = sum(iteration - born < settings.age for born in self.born)
        first = len(self.episodes) - min(young, settings.size)
        self.episodes, self.born, self.returns = self.episodes[first:], self.born[first:], self.returns[first:]

    def chosen(self) -> tuple[list[Episode], np.ndarray]:
        """The episodes to train on again, newest first, and the excess of each return over the median, float64."""
        middle = float(np.median(self.baseline)) if self.baseline else 0.0
        better = [place for place, paid in enumerate(self.returns) if paid > middle]
        places = better[::-1][: self.settings.episodes]
        return [self.episodes[place] for place in places], np.asarray([self.returns[p] - middle for p in places])

    def state(self) -> bytes:
        """The buffer as bytes, for a checkpoint."""
        return packed(self.episodes, {"born": self.born, "returns": self.returns, "baseline": self.baseline})

    def restore(self, state: bytes) -> None:
        self.episodes, about = unpacked(state)
        self.born, self.returns, self.baseline = about["born"], about["returns"], about["baseline"]
        if not len(self.episodes) == len(self.born) == len(self.returns):
            raise ValueError("episodes, ages and returns differ in number")


def joined(
    rows: list[Row], credit: Credit, episodes: Sequence[Episode], advantage_E: np.ndarray
) -> tuple[list[Row], Credit]:
    """Rows and credit with those of more ``episodes`` appended, each a task group of its own.

    advantage_E: one per added episode.
    """
    turns, groups = len(credit.tokens_N), 1 + max((row.group for row in rows), default=-1)
    numbered = [replace(episode, group=number) for number, episode in enumerate(episodes)]
    more = [
        replace(row, turn_K=row.turn_K + turns, token_K=row.token_K + credit.tokens, group=row.group + groups)
        for row in build_rows(numbered)
    ]
    tokens_N = np.asarray([len(turn.response_ids) for episode in episodes for turn in episode.turns], np.int64)
    advantage = np.repeat(advantage_E, [len(episode.turns) for episode in episodes])
    if credit.level == "token":
        advantage = np.repeat(advantage, tokens_N)
    together = replace(
        credit,
        advantage=np.concatenate([credit.advantage, advantage]),
        tokens_N=np.concatenate([credit.tokens_N, tokens_N]),
    )
    return [*rows, *more], together
