"""The world's expert as a loss: what it would have done in the states that the policy visited (DAgger, 1011.0686)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from gagpo.agents.agent import Manner
from gagpo.agents.episodes import Episode, Turn
from gagpo.envs.base import TextEnv
from gagpo.learning.batch import Row
from gagpo.settings import RunSettings, SettingsError

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half a character, which no tokenizer takes."""


def require_expert(worlds: Mapping[str, TextEnv], settings: RunSettings) -> None:
    """SettingsError where the algorithm learns from an expert and no world of a run has one.

    worlds: by name. Of several, those that have none are named in a warning: the others' experts teach.
    """
    if not settings.asks_expert:
        return
    environments = {world.name: world.environment.id for world in settings.worlds}
    silent = [
        f"{name} ({environments[name]})" if name else environments[name]
        for name, world in worlds.items()
        if isinstance(world, TextEnv) and type(world).expert_action is TextEnv.expert_action
    ]
    if len(silent) == len(worlds):
        raise SettingsError(
            f"the algorithm learns from the world's expert, and {', '.join(silent)} has none: write its method "
            "expert_action, or leave out algorithm.expert and hint=expert"
        )
    if silent:
        warnings.warn(f"no expert teaches in {', '.join(silent)}: it has none (expert_action)", stacklevel=2)


def expert_rows(episodes: Sequence[Episode], manners: Mapping[str, Manner]) -> list[Row]:
    """A row for every turn whose expert is known: what the policy had read, and the expert's action as a response.

    manners: how the policy speaks in each world, by name; by '' in a run of one. Rows are numbered as those of
    :func:`gagpo.learning.batch.build_rows` in turn and group. An action that takes more than the manner's
    ``max_tokens``, or is no text, is left out: the policy could not say it.
    """
    groups = sorted({episode.group for episode in episodes})
    rows: list[Row] = []
    number = tokens = 0
    for episode in episodes:
        manner = manners[episode.world or ""]
        context = manner.context
        for turn in episode.turns:
            if turn.expert and not SURROGATE.search(turn.expert):
                response_ids = context.response(context.phrasing.write(Turn.acting(turn.expert)))
                first, count = len(turn.prompt_ids), len(response_ids)
                if count <= manner.max_tokens:
                    ids, offset_K = np.concatenate([turn.prompt_ids, response_ids]), np.arange(count)
                    numbers = (first + offset_K, np.full(count, number), tokens + offset_K)
                    group = groups.index(episode.group)
                    rows.append(Row(ids, *numbers, np.zeros(count, np.float32), group=group))
                    tokens += count
            number += 1
    return rows


def expert_metrics(episodes: Sequence[Episode], rows: Sequence[Row]) -> dict[str, float]:
    """Shares of the turns that an expert's action is known of, and of those in which the policy did the same."""
    turns = [turn for episode in episodes for turn in episode.turns]
    known = [turn for turn in turns if turn.expert]
    agreed = sum(turn.action == turn.expert for turn in known)
    return {"expert_turns": len(rows) / len(turns), "expert_agreement": agreed / max(1, len(known))}
