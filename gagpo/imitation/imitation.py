"""Expert imitation, distillation and replay, added to the batch of an iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from gagpo.agents.agent import ChatFormat
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode
from gagpo.agents.prompts import STYLES
from gagpo.credit import Credit, Turns
from gagpo.credit.turns.grouping import group_mean
from gagpo.distributed.ranks import Ranks
from gagpo.envs.base import TextEnv
from gagpo.envs.tools import tools_of
from gagpo.imitation.distillation import Teacher
from gagpo.imitation.expert import expert_metrics, expert_rows
from gagpo.imitation.replay import ReplayBuffer
from gagpo.learning.batch import Row, Supervision, build_rows
from gagpo.settings import RunSettings


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
    """Adds expert imitation, distillation and replay to an iteration's rows and credit; all ranks do the same.

    model: the policy in training.
    tokenizer: the policy's.
    environments: one of each, by name.
    """

    def __init__(
        self,
        settings: RunSettings,
        model: torch.nn.Module,
        tokenizer: object,
        ranks: Ranks,
        environments: Mapping[str, TextEnv],
    ):
        algorithm = settings.algorithm
        self.weight, self.expert, self.distillation = algorithm.credit_weight, algorithm.expert, algorithm.distillation
        self.iterations, chosen = settings.training.iterations, self.distillation
        self.formats = formats_of(settings, tokenizer, environments) if self.expert or chosen else {}
        self.teacher = Teacher(settings, model, self.formats, ranks, chosen) if chosen else None
        self.replay = ReplayBuffer(algorithm.replay) if algorithm.replay else None

    def extended(self, episodes: Sequence[Episode], rows: list[Row], credit: Credit, iteration: int) -> LearningBatch:
        """The batch of ``iteration`` (from 0), from the rows and the credit of its episodes."""
        stats: dict[str, float] = {}
        mixed = replace(credit, advantage=self.weight * credit.advantage) if self.weight != 1 else credit
        if self.teacher is not None and self.distillation is not None:
            coefficient = self.distillation.at(iteration, self.iterations)
            teacher_K, judged_K = self.teacher.advantage(rows, episodes, credit.tokens)
            mixed = replace(mixed, advantage=mixed.per_token() + coefficient * teacher_K, level="token")
            stats |= {
                "distillation_coefficient": coefficient,
                "distillation_advantage": float(teacher_K.sum() / max(1, judged_K.sum())),
                "distilled_tokens": float(judged_K.mean()),
            }
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
        """Keep the episodes of ``iteration`` that are worth replaying. turns, credit: of ``episodes``."""
        if self.replay is not None:
            credit_E = group_mean(credit.advantage_N, turns.episode_N, turns.episodes)
            self.replay.add(episodes, credit_E, turns.return_E, iteration)


def formats_of(settings: RunSettings, tokenizer: object, environments: Mapping[str, TextEnv]) -> dict[str, ChatFormat]:
    """How the policy is prompted, by environment name ('' in a run of one)."""
    found = {}
    for env in settings.all_environments:
        chosen, environment = env.context, environments.get(env.name)
        context = Context(
            tokenizer,
            STYLES[chosen.style],
            getattr(environment, "instructions", ""),
            chosen.history,
            chosen.admissible,
            chosen.template,
            tools_of(environment),
            chosen.calls,
        )
        found[env.name] = ChatFormat(context, env.max_tokens)
    return found


def joined(
    rows: list[Row], credit: Credit, episodes: Sequence[Episode], advantage_E: np.ndarray
) -> tuple[list[Row], Credit]:
    """Rows and credit with those of more ``episodes`` appended, one advantage per episode.

    Each of these episodes forms a task group of its own.
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
