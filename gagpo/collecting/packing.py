"""Episodes as bytes: for other ranks, and for the checkpoints of ``rollout.ahead``.

A file of numpy with three arrays: a JSON text with the fields of episodes and turns, the new token ids of all turns,
and their log-probabilities. A prompt usually begins with the previous prompt and response, which are stored once: the
counts of a turn say how much of the beginning it shares. Nothing is pickled, so reading runs no code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gagpo.data import Call, Episode, Turn

EPISODE_FIELDS = (
    "task", "task_type", "split", "group", "sample", "seed", "temperature", "success", "outcome", "restarts",
    "end_observation", "end_state", "info", "environment",
)  # fmt: skip
TURN_FIELDS = (
    "observation", "response", "action", "reward", "invalid", "cut", "sent", "state", "trainable", "version", "calls",
)  # fmt: skip


def packed(episodes: Sequence[Episode], header: dict[str, Any]) -> bytes:
    """Episodes of a rollout, before credit, and plain values as bytes for :func:`unpacked`."""
    ids = [np.zeros(0, np.int32)]
    logprobs = [np.zeros(0, np.float32)]
    records = []
    for episode in episodes:
        turns = []
        previous_ids = np.zeros(0, np.int32)  # the previous prompt and response
        for turn in episode.turns:
            shared = _common_prefix(previous_ids, turn.prompt_ids)
            counts = [shared, len(turn.prompt_ids) - shared, len(turn.response_ids), len(turn.logprobs)]
            turns.append([counts, {name: getattr(turn, name) for name in TURN_FIELDS}])
            ids += [turn.prompt_ids[shared:], turn.response_ids]
            logprobs.append(turn.logprobs)
            previous_ids = np.concatenate([turn.prompt_ids, turn.response_ids])
        records.append([{name: getattr(episode, name) for name in EPISODE_FIELDS}, turns])
    text = json.dumps([header, records], default=lambda value: value.item()).encode()  # numbers of numpy
    file = io.BytesIO()
    np.savez(
        file,
        # JSON as bytes of an array: numpy's own texts would be padded to the longest, and its objects are pickles.
        text=np.frombuffer(text, np.uint8),
        ids=np.concatenate(ids).astype(np.int32),
        logprobs=np.concatenate(logprobs).astype(np.float32),
    )
    return file.getvalue()


def unpacked(data: bytes) -> tuple[list[Episode], dict[str, Any]]:
    """The arguments of :func:`packed`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        text = file["text"].tobytes()
        ids = file["ids"]
        logprobs = file["logprobs"]
    header, records = json.loads(text)
    episodes = []
    ids_start = 0
    logprobs_start = 0
    for fields, turns in records:
        episode = Episode(**fields)
        previous_ids = np.zeros(0, np.int32)
        for (shared, num_new, num_response, num_logprobs), columns in turns:
            response_start = ids_start + num_new
            ids_end = response_start + num_response
            logprobs_end = logprobs_start + num_logprobs
            prompt_ids = np.concatenate([previous_ids[:shared], ids[ids_start:response_start]])
            columns["calls"] = tuple(Call(*call) for call in columns["calls"])
            turn = Turn(
                **columns,
                prompt_ids=prompt_ids,
                # Copies, so that one kept turn does not keep the arrays of all.
                response_ids=ids[response_start:ids_end].copy(),
                logprobs=logprobs[logprobs_start:logprobs_end].copy(),
            )
            previous_ids = np.concatenate([turn.prompt_ids, turn.response_ids])
            episode.turns.append(turn)
            ids_start = ids_end
            logprobs_start = logprobs_end
        episodes.append(episode)
    return episodes, header


def _common_prefix(first: np.ndarray, second: np.ndarray) -> int:
    """Length of the common prefix."""
    length = min(len(first), len(second))
    differences = np.flatnonzero(first[:length] != second[:length])
    return int(differences[0]) if len(differences) else length
