"""On-policy distillation: how much likelier a teacher finds the tokens that the policy sampled."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gagpo.agents.agent import Manner
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode, Turn
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.envs.base import TextEnv
from gagpo.imitation.alignment import chunks_of, spread, token_ends
from gagpo.imitation.manners import manners_of
from gagpo.imitation.served_teacher import ServedTeacher
from gagpo.learning.batch import Row, build_rows
from gagpo.learning.forward import Networks
from gagpo.learning.packing import MicroBatch, packing_of
from gagpo.learning.precision import autocast
from gagpo.learning.sharded_batches import rank_batches, token_columns
from gagpo.objectives.imitation import Distillation, distillation_advantage
from gagpo.settings import RunSettings, SettingsError


class Teacher:
    """What judges the policy's tokens: another model that reads the same tokens, or the policy itself, told more.

    manners: how the policy speaks in each world. A model of another tokenizer reads the same conversations in its own
    chat template and tokens, and judges the text of a response chunk by chunk.
    """

    def __init__(
        self,
        settings: RunSettings,
        model: torch.nn.Module,
        manners: Mapping[str, Manner],
        ranks: Ranks,
        chosen: Distillation,
        worlds: Mapping[str, TextEnv],
    ):
        self.chosen, self.manners, self.ranks, self.device = chosen, manners, ranks, settings.device
        self.own: Mapping[str, Manner] | None = None  # how the teacher reads, where it reads other tokens
        self.served = ServedTeacher(chosen) if chosen.served else None
        self.longest: int | None = None
        if self.served is not None:
            if settings.rollout.temperature != 1.0:
                raise SettingsError(
                    "a served teacher tells its log-probabilities at temperature 1, and rollout.temperature="
                    f"{settings.rollout.temperature:g}: set it to 1, or take a model folder as the teacher"
                )
            self._read_by(load_tokenizer(self.served.tokenizer), settings, worlds)
            return
        if chosen.teacher != "self":
            self._read_by(load_tokenizer(chosen.teacher), settings, worlds)
            code = settings.trust_remote_code
            model = load_model(chosen.teacher, settings.engine.dtype, device=settings.device, trust_remote_code=code)
            model.requires_grad_(False)
            if not ranks.alone:
                shard(model, ranks, settings.engine.dtype, settings.device)
        self.longest = getattr(model.config, "max_position_embeddings", None)
        self.packing = packing_of(model, settings)
        self.networks = Networks(model, autocast=functools.partial(autocast, settings))

    def _read_by(self, tokenizer: Any, settings: RunSettings, worlds: Mapping[str, TextEnv]) -> None:
        """Find out whether the teacher reads the policy's own tokens; else make the contexts that it reads by."""
        ours = next(iter(self.manners.values())).context.tokenizer.get_vocab()
        theirs = tokenizer.get_vocab()
        odd = sorted(token for token in ours if theirs.get(token) != ours[token])
        if not odd:
            return
        if any(world.context.admissible for world in settings.worlds):
            raise SettingsError(
                f"algorithm.distillation.teacher={self.chosen.teacher} reads other tokens than {settings.model}, so "
                "conversations are told to it again, and what was admissible is not kept: set context.admissible=false"
            )
        self.own = manners_of(settings, tokenizer, worlds)
        warnings.warn(
            f"the teacher {self.chosen.teacher} reads other tokens than {settings.model} ({len(odd)} differ, the first "
            f"{odd[0]!r}): it judges by text, where tokens of both end together",
            stacklevel=2,
        )

    def advantage(self, rows: Sequence[Row], episodes: Sequence[Episode], tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """Of each response token its advantage and whether the teacher judged it, float64[K] and bool[K].

        rows: of ``episodes``. A turn without a hint, where the teacher is to have one, is not judged: advantage 0.
        """
        if self.own is not None:
            return self._by_text(self.own, rows, episodes, tokens)
        read = self._read(rows, episodes, self.manners)
        student_K, judged_K = _sampled(read, tokens), np.zeros(tokens, np.bool_)
        for row in read:
            judged_K[row.token_K] = True
        advantage_K = distillation_advantage(self._judged(read, tokens), student_K, self.chosen)
        return np.where(judged_K, advantage_K, 0.0), judged_K

    def _by_text(
        self, own: Mapping[str, Manner], rows: Sequence[Row], episodes: Sequence[Episode], tokens: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The same where tokens are others: of each chunk of a response, in equal parts over the policy's tokens."""
        told = [replace(one, turns=own[one.world or ""].context.retold(one.turns)) for one in episodes]
        turns, others = ([turn for one in column for turn in one.turns] for column in (episodes, told))
        worlds = [one.world or "" for one in episodes for _ in one.turns]
        part_N, other_N = _slices(turns), _slices(others)
        read = self._read(build_rows(told), told, own)
        teacher_T = self._judged(read, sum(len(turn.response_ids) for turn in others))
        student_K = _sampled(rows, tokens)

        advantage_K, judged_K = np.zeros(tokens), np.zeros(tokens, np.bool_)
        for number in sorted({int(turn) for row in read for turn in row.turn_K}):
            part, other = part_N[number], other_N[number]
            if part.start == part.stop or other.start == other.stop:  # one of the two says nothing
                continue
            ends_K = _ends(self.manners[worlds[number]].context, turns[number])
            chunk_K, chunk_T = chunks_of(ends_K, _ends(own[worlds[number]].context, others[number]))
            teacher_C, student_C = np.bincount(chunk_T, teacher_T[other]), np.bincount(chunk_K, student_K[part])
            advantage_K[part] = spread(distillation_advantage(teacher_C, student_C, self.chosen), chunk_K)
            judged_K[part] = True
        return advantage_K, judged_K

    def _read(self, rows: Sequence[Row], episodes: Sequence[Episode], manners: Mapping[str, Manner]) -> list[Row]:
        """What the teacher reads of ``rows``, with its hints, as far as it is not too long for it."""
        hint = self.chosen.hint
        read = rows if hint == "none" else hinted_rows(rows, episodes, manners, hint)
        return [row for row in read if self.longest is None or row.length <= self.longest]

    def _judged(self, read: Sequence[Row], tokens: int) -> np.ndarray:
        """The teacher's log-probabilities of the response tokens of ``read``, float64[tokens]; 0 for all others."""
        if not read:
            return np.zeros(tokens)
        if self.served is not None:
            found = np.zeros(tokens)
            mine = read[self.ranks.rank :: self.ranks.world]  # each rank asks about its share
            for row, logprob_K in zip(mine, self.served.logprobs(mine), strict=True):
                found[row.token_K] = logprob_K
            return np.asarray(self.ranks.total(found), np.float64)
        self.networks.policy.eval()
        batches = rank_batches(read, self.packing, self.ranks)
        (teacher_K,) = token_columns(self._logprobs, batches, tokens, self.device, self.ranks)
        return teacher_K

    def _logprobs(self, batch: MicroBatch) -> tuple[Tensor]:
        return (self.networks.logprobs(batch)[0],)


def _sampled(rows: Sequence[Row], tokens: int) -> np.ndarray:
    """What the response tokens of ``rows`` were sampled with, float64[tokens]."""
    found = np.zeros(tokens)
    for row in rows:
        found[row.token_K] = row.logprob_K
    return found


def _slices(turns: Sequence[Turn]) -> list[slice]:
    """Where the response tokens of each turn stand among those of all."""
    first_N = np.cumsum([0, *(len(turn.response_ids) for turn in turns)]).tolist()
    return [slice(first, last) for first, last in itertools.pairwise(first_N)]


def _ends(context: Context, turn: Turn) -> list[int]:
    """Where the tokens of a response end in its text; the end token ends behind it."""
    ids, text = turn.response_ids.tolist(), turn.response
    if turn.cut:
        return token_ends(context.tokenizer, ids, text)
    return [*token_ends(context.tokenizer, ids[:-1], text), len(text) + 1]


def hinted_rows(
    rows: Sequence[Row], episodes: Sequence[Episode], manners: Mapping[str, Manner], kind: str
) -> list[Row]:
    """A row for every turn that there is a hint for: what the policy had read and the hint, and its own response.

    manners: how the turns were put, by world.
    """
    turns = [turn for episode in episodes for turn in episode.turns]
    contexts: list[Context] = [manners[episode.world or ""].context for episode in episodes for _ in episode.turns]
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
    """What the teacher is told at each turn of ``episodes``; '' where there is nothing to tell.

    ``expert``: what the expert would do now. ``success``: all that the shortest other success of the task group did.
    """
    if kind == "expert":
        return [f"A good action: {t.expert}" if t.expert else "" for episode in episodes for t in episode.turns]
    hints = []
    for episode in episodes:
        others = [
            other for other in episodes if other.group == episode.group and other.success and other is not episode
        ]
        best = min(others, key=lambda other: len(other.turns), default=None)
        told = "" if best is None else "What led to success: " + "; ".join(turn.action for turn in best.turns)
        hints += [told] * len(episode.turns)
    return hints
