"""On-policy distillation: how much likelier a teacher finds the tokens that the policy sampled."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.learning.batch import Row
from gagpo.learning.forward import Networks
from gagpo.learning.packing import MicroBatch, packing_of
from gagpo.learning.precision import autocast
from gagpo.learning.sharded_batches import rank_batches, token_columns
from gagpo.objectives.imitation import Distillation, distillation_advantage
from gagpo.settings import RunSettings, SettingsError


class Teacher:
    """What judges the policy's tokens: another model that reads the same tokens, or the policy itself, told more."""

    def __init__(
        self, settings: RunSettings, model: torch.nn.Module, context: Context, ranks: Ranks, chosen: Distillation
    ):
        self.chosen, self.context, self.ranks, self.device = chosen, context, ranks, settings.device
        if chosen.teacher != "self":
            require_same_tokens(chosen.teacher, settings.model, context)
            code = settings.trust_remote_code
            model = load_model(chosen.teacher, settings.engine.dtype, device=settings.device, trust_remote_code=code)
            model.requires_grad_(False)
            if not ranks.alone:
                shard(model, ranks, settings.engine.dtype, settings.device)
        self.longest = getattr(model.config, "max_position_embeddings", None)
        self.packing = packing_of(model, settings)
        self.networks = Networks(model, autocast=functools.partial(autocast, settings))

    def advantage(self, rows: Sequence[Row], episodes: Sequence[Episode], tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each response token its advantage and whether the teacher judged it, float64[K] and bool[K].

        rows: of ``episodes``. A turn without a hint, where the teacher is to have one, is not judged: advantage 0.
        """
        read = rows if self.chosen.hint == "none" else hinted_rows(rows, episodes, self.context, self.chosen.hint)
        read = [row for row in read if self.longest is None or row.length <= self.longest]
        student_K, teacher_K, judged_K = np.zeros(tokens), np.zeros(tokens), np.zeros(tokens, np.bool_)
        for row in read:
            student_K[row.token_K], judged_K[row.token_K] = row.logprob_K, True
        if read:
            self.networks.policy.eval()
            batches = rank_batches(read, self.packing, self.ranks)
            (teacher_K,) = token_columns(self._logprobs, batches, tokens, self.device, self.ranks)
        return np.where(judged_K, distillation_advantage(teacher_K, student_K, self.chosen), 0.0), judged_K

    def _logprobs(self, batch: MicroBatch) -> tuple[Tensor]:
        return (self.networks.logprobs(batch)[0],)


def require_same_tokens(teacher: str, student: str, context: Context) -> None:
    """SettingsError unless the teacher's tokenizer gives the same ids to the same tokens as the student's."""
    theirs, ours = load_tokenizer(teacher).get_vocab(), context.tokenizer.get_vocab()
    odd = sorted(token for token in ours if theirs.get(token) != ours[token])
    if odd:
        raise SettingsError(
            f"algorithm.distillation.teacher={teacher} reads other tokens than {student} ({len(odd)} differ, the first "
            f"{odd[0]!r}), and its log-probabilities are of no use token by token: take a teacher of the same family, "
            "or have it play demonstrations (warm_start.teacher)"
        )


def hinted_rows(rows: Sequence[Row], episodes: Sequence[Episode], context: Context, kind: str) -> list[Row]:
    """A row for every turn that there is a hint for: what the policy had read and the hint, and its own response."""
    turns = [turn for episode in episodes for turn in episode.own]
    hints = hints_of(episodes, kind)
    found: list[Row] = []
    for row in rows:
        for number in np.unique(row.turn_K):
            hint, turn, own_K = hints[number], turns[number], row.turn_K == number
            if not hint:
                continue
            prompt_ids = context.with_hint(turn.prompt_ids, hint)
            place_K = len(prompt_ids) + np.arange(len(turn.response_ids))
            ids = np.concatenate([prompt_ids, turn.response_ids])
            columns = {name: getattr(row, name)[own_K] for name in ("turn_K", "token_K", "logprob_K")}
            found.append(replace(row, ids=ids, place_K=place_K, **columns))
    return found


def hints_of(episodes: Sequence[Episode], kind: str) -> list[str]:
    """What the teacher is told at each turn of ``episodes``; '' where there is nothing to tell.

    ``expert``: what the expert would do now. ``success``: all that the shortest other success of the task group did.
    """
    if kind == "expert":
        return [f"A good action: {t.expert}" if t.expert else "" for episode in episodes for t in episode.own]
    hints = []
    for episode in episodes:
        others = [
            other for other in episodes if other.group == episode.group and other.success and other is not episode
        ]
        best = min(others, key=lambda other: len(other.turns), default=None)
        told = "" if best is None else "What led to success: " + "; ".join(turn.action for turn in best.turns)
        hints += [told] * len(episode.own)
    return hints
