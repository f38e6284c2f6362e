"""On-policy distillation: advantages from a teacher's log-probabilities of the sampled tokens."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.agent import ChatFormat
from gagpo.agents.episodes import Episode
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.learning.batch import Row
from gagpo.learning.forward import Networks, autocast
from gagpo.learning.packing import MicroBatch, packing_of, rank_batches, token_columns
from gagpo.objectives.imitation import Distillation, distillation_advantage
from gagpo.settings import RunSettings, SettingsError


class Teacher:
    """The teacher: another model with the same tokenizer, or the policy itself with a hint.

    formats: how the policy is prompted, by environment.
    """

    def __init__(
        self,
        settings: RunSettings,
        model: torch.nn.Module,
        formats: Mapping[str, ChatFormat],
        ranks: Ranks,
        chosen: Distillation,
    ):
        self.chosen, self.formats, self.ranks, self.device = chosen, formats, ranks, settings.device
        if chosen.teacher != "self":
            self._require_same_tokenizer(settings)
            code = settings.trust_remote_code
            model = load_model(chosen.teacher, settings.engine.dtype, device=settings.device, trust_remote_code=code)
            model.requires_grad_(False)
            if not ranks.alone:
                shard(model, ranks, settings.engine.dtype, settings.device)
        self.longest: int | None = getattr(model.config, "max_position_embeddings", None)
        self.packing = packing_of(model, settings)
        self.networks = Networks(model, autocast=functools.partial(autocast, settings))

    def _require_same_tokenizer(self, settings: RunSettings) -> None:
        ours = next(iter(self.formats.values())).context.tokenizer.get_vocab()
        theirs = load_tokenizer(self.chosen.teacher).get_vocab()
        odd = sorted(token for token in ours if theirs.get(token) != ours[token])
        if odd:
            raise SettingsError(
                f"algorithm.distillation.teacher={self.chosen.teacher} and {settings.model} have different tokenizers "
                f"({len(odd)} tokens differ, the first is {odd[0]!r}): choose a teacher with the same tokenizer"
            )

    def advantage(self, rows: Sequence[Row], episodes: Sequence[Episode], tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """The advantage of each response token, float64[K], and whether the teacher scored it, bool[K].

        Turns that lack a hint, if the teacher needs one, are not scored and have advantage 0.

        rows: of ``episodes``.
        """
        hint = self.chosen.hint
        read = rows if hint == "none" else hinted_rows(rows, episodes, self.formats, hint)
        read = [row for row in read if self.longest is None or row.length <= self.longest]
        teacher_K, student_K, judged_K = np.zeros(tokens), np.zeros(tokens), np.zeros(tokens, np.bool_)
        if read:
            self.networks.policy.eval()
            batches = rank_batches(read, self.packing, self.ranks)
            (teacher_K,) = token_columns(self._logprobs, batches, tokens, self.device, self.ranks)
        for row in read:
            student_K[row.token_K] = row.logprob_K
            judged_K[row.token_K] = True
        advantage_K = distillation_advantage(teacher_K, student_K, self.chosen)
        return np.where(judged_K, advantage_K, 0.0), judged_K

    def _logprobs(self, batch: MicroBatch) -> tuple[Tensor]:
        return (self.networks.logprobs(batch)[0],)


def hinted_rows(
    rows: Sequence[Row], episodes: Sequence[Episode], formats: Mapping[str, ChatFormat], kind: str
) -> list[Row]:
    """A row for every turn with a hint: the prompt with the hint, and the policy's own response."""
    turns = [turn for episode in episodes for turn in episode.turns]
    contexts = [formats[episode.environment or ""].context for episode in episodes for _ in episode.turns]
    hints = hints_of(episodes, kind)
    found: list[Row] = []
    for row in rows:
        for number in np.unique(row.turn_K):
            hint, turn, own_K = hints[number], turns[number], row.turn_K == number
            if not hint:
                continue
            prompt_ids = contexts[number].with_hint(turn.prompt_ids, hint)
            place_K = len(prompt_ids) + np.arange(len(turn.response_ids))
            ids = np.concatenate([prompt_ids, turn.response_ids])
            columns = {name: getattr(row, name)[own_K] for name in ("turn_K", "token_K", "logprob_K")}
            found.append(replace(row, ids=ids, place_K=place_K, **columns))
    return found


def hints_of(episodes: Sequence[Episode], kind: str) -> list[str]:
    """The hint for each turn of ``episodes``, empty where there is none.

    ``expert``: the expert's action in this state. ``success``: the actions of the shortest other success of the group.
    """
    if kind == "expert":
        return [f"A good action: {t.expert}" if t.expert else "" for episode in episodes for t in episode.turns]
    hints = []
    for episode in episodes:
        others = [
            other for other in episodes if other.group == episode.group and other.success and other is not episode
        ]
        best = min(others, key=lambda other: len(other.turns), default=None)
        hint = "" if best is None else "What led to success: " + "; ".join(turn.action for turn in best.turns)
        hints += [hint] * len(episode.turns)
    return hints
