"""Rollouts of all ranks together: each plays whole task groups, and all get the episodes of all.

Episodes are gathered as plain values and token ids, each prompt's new part once. Every rank then holds the batch that a
single process would have, so that credit, norms and controllers need no further communication.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from gagpo.agents.agent import Agent
from gagpo.agents.rollout import Clock, Job, rollout
from gagpo.data.episodes import Call, Episode, Turn
from gagpo.distributed.errors import RanksDiffer
from gagpo.distributed.interrupt import Interruptions
from gagpo.distributed.ranks import Ranks
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings, SettingsError

PLAYED = ("task", "task_type", "split", "group", "sample", "seed", "temperature", "success", "outcome", "restarts")
EPISODE = (*PLAYED, "end_observation", "end_state", "info", "environment")
ACTED = ("observation", "response", "action", "reward", "invalid", "cut", "sent")
TURN = (*ACTED, "state", "trainable", "version", "calls")


class Rollout(Protocol):
    """A function that plays jobs: :func:`gagpo.agents.rollout.rollout`, or the same by all ranks together."""

    def __call__(
        self,
        agent: Agent,
        pool: Pool,
        jobs: Sequence[Job],
        *,
        concurrency: int = 256,
        deterministic: bool = True,
        on_finish: Callable[[Episode], None] | None = None,
    ) -> tuple[list[Episode], Clock]: ...


def require_fitting(settings: RunSettings, processes: int) -> None:
    """Raise SettingsError if the run cannot be spread over several ``processes``."""
    if settings.rollout.ahead:
        raise SettingsError(
            f"rollout.ahead={settings.rollout.ahead} needs a single process (got {processes}): set rollout.ahead=0, or "
            "processes=1"
        )
    tasks = settings.rollout.tasks
    if tasks % processes:
        raise SettingsError(
            f"rollout.tasks={tasks} cannot be divided over {processes} processes: set it to a multiple of {processes}, "
            f"or processes to a divisor of {tasks}"
        )


def rollout_of(ranks: Ranks, interruptions: Interruptions) -> Rollout:
    """A rollout by all ranks together.

    Task group k is played by rank ``k mod world_size``, with the same seeds as on a single rank.
    """
    if ranks.alone:
        return rollout

    def play(
        agent: Agent,
        pool: Pool,
        jobs: Sequence[Job],
        *,
        on_finish: Callable[[Episode], None] | None = None,
        **options: Any,
    ) -> tuple[list[Episode], Clock]:
        mine = [job for job in jobs if job.group % ranks.world_size == ranks.rank]
        episodes: list[Episode] = []
        clock = Clock()
        error: BaseException | None = None
        try:
            with interruptions.immediate():
                episodes, clock = rollout(agent, pool, mine, on_finish=on_finish, **options)
        except BaseException as caught:
            episodes, error = [], caught
        about = {"error": error and type(error).__name__, "clock": vars(clock), "jobs": _digest(jobs)}
        found = [unpacked(one) for one in ranks.gathered_bytes(packed(episodes, about))]
        ranks.raise_together(error, [other["error"] for _, other in found])
        if any(other["jobs"] != about["jobs"] for _, other in found):
            raise RanksDiffer("the ranks chose different tasks: use the same software and data on all machines")
        place = {(job.group, job.sample): number for number, job in enumerate(jobs)}
        together = sorted((one for part, _ in found for one in part), key=lambda one: place[one.group, one.sample])
        own = {(job.group, job.sample) for job in mine}
        for episode in together:
            if on_finish and (episode.group, episode.sample) not in own:
                on_finish(episode)
        return together, max((Clock(**other["clock"]) for _, other in found), key=lambda clock: clock.total)

    return play


def _digest(jobs: Sequence[Job]) -> str:
    return hashlib.sha256(repr(list(jobs)).encode()).hexdigest()


def packed(episodes: Sequence[Episode], about: dict[str, Any]) -> bytes:
    """Episodes of a rollout, before credit, and plain values as bytes for :func:`unpacked`."""
    heads, ids, logprobs = [], [np.zeros(0, np.int32)], [np.zeros(0, np.float32)]
    for episode in episodes:
        turns, before = [], np.zeros(0, np.int32)
        for turn in episode.turns:
            known = _common(before, turn.prompt_ids)
            counts = [known, len(turn.prompt_ids) - known, len(turn.response_ids), len(turn.logprobs)]
            turns.append([counts, {name: getattr(turn, name) for name in TURN}])
            ids += [turn.prompt_ids[known:], turn.response_ids]
            logprobs.append(turn.logprobs)
            before = np.concatenate([turn.prompt_ids, turn.response_ids])
        heads.append([{name: getattr(episode, name) for name in EPISODE}, turns])
    text = json.dumps([about, heads], default=lambda value: value.item()).encode()  # numbers of numpy
    file = io.BytesIO()
    np.savez(
        file,
        text=np.frombuffer(text, np.uint8),
        ids=np.concatenate(ids).astype(np.int32),
        logprobs=np.concatenate(logprobs).astype(np.float32),
    )
    return file.getvalue()


def unpacked(data: bytes) -> tuple[list[Episode], dict[str, Any]]:
    """The arguments of :func:`packed`."""
    with np.load(io.BytesIO(data), allow_pickle=False) as file:
        text, ids, logprobs = file["text"].tobytes(), file["ids"], file["logprobs"]
    about, heads = json.loads(text)
    episodes, at, place = [], 0, 0
    for values, turns in heads:
        episode, before = Episode(**values), np.zeros(0, np.int32)
        for (known, new, answered, weighed), columns in turns:  # a prompt begins with what came before it
            prompt = np.concatenate([before[:known], ids[at : at + new]])
            response = ids[at + new : at + new + answered].copy()
            columns["calls"] = [Call(*one) for one in columns["calls"]]
            turn = Turn(**columns, prompt_ids=prompt, response_ids=response, logprobs=logprobs[place:][:weighed].copy())
            at, place = at + new + answered, place + weighed
            before = np.concatenate([prompt, response])
            episode.turns.append(turn)
        episodes.append(episode)
    return episodes, about


def _common(one: np.ndarray, other: np.ndarray) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
