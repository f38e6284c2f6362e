"""Imitation of the environment's expert in the states that the policy visited (DAgger, arXiv 1011.0686)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from gagpo.agents.agent import ChatFormat
from gagpo.agents.episodes import Episode, Turn
from gagpo.envs.base import TextEnv
from gagpo.learning.batch import Row
from gagpo.settings import RunSettings, SettingsError

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which no tokenizer takes."""


def require_expert(envs: Mapping[str, TextEnv], settings: RunSettings) -> None:
    """Raise SettingsError when the algorithm needs an expert and no environment of the run has one.

    environments: one environment of each, by name. A warning names those without an expert when others have one.
    """
    if not settings.asks_expert:
        return
    environments = {env.name: env.environment.id for env in settings.all_environments}
    silent = [
        f"{name} ({environments[name]})" if name else environments[name]
        for name, env in envs.items()
        if isinstance(env, TextEnv) and type(env).expert_action is TextEnv.expert_action
    ]
    if len(silent) == len(envs):
        raise SettingsError(
            f"the algorithm learns from an expert, and {', '.join(silent)} has none: implement expert_action, "
            "or remove algorithm.expert and hint=expert"
        )
    if silent:
        warnings.warn(f"no expert in {', '.join(silent)} (expert_action is not implemented)", stacklevel=2)


def expert_rows(episodes: Sequence[Episode], formats: Mapping[str, ChatFormat]) -> list[Row]:
    """A row for every turn with an expert action: the policy's prompt, and that action as the response.

    formats: how the policy is prompted, by environment name ('' in a run of one). Turns and groups are numbered as in
    :func:`gagpo.learning.batch.build_rows`. Actions longer than ``max_tokens``, or not valid text, are skipped because
    the policy could not produce them.
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
    """Share of turns with an expert action, and share of those in which the policy chose the same."""
    turns = [turn for episode in episodes for turn in episode.turns]
    known = [turn for turn in turns if turn.expert]
    agreed = sum(turn.action == turn.expert for turn in known)
    return {"expert_turns": len(rows) / len(turns), "expert_agreement": agreed / max(1, len(known))}
