"""Checks ``save`` and ``restore``: after a restore, the same actions must have the same results.

An episode is played once, partly by its expert, and saved before every action. Then each saved state is restored in the
same instance, in a new one and in a new process, and the episode is replayed to its end.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from gagpo.envs.base import Info
from gagpo.envs.check.fresh_process import call
from gagpo.envs.check.subject import NotJudged, Start, Subject, contrast, line, require, sampled_action
from gagpo.envs.saved import CannotRestore
from gagpo.envs.tools import separate

_TURNS = 20  # of an episode; replaying takes a quadratic number of steps

Record = tuple[list[str], list[str], list[str]]
"""Saved states as text, actions, and the reset's and each step's result as a line."""


def restoring(subject: Subject) -> str:
    """Restore each saved state and compare what follows; :class:`NotJudged` if ``can_restore`` is False."""
    env, more = _make(subject)
    with closing(env):
        if not getattr(env.unwrapped, "can_restore", False):
            _require_no_save(env, subject)
            raise NotJudged("its states cannot be restored (can_restore is False)")
        require(env is env.unwrapped, f"restoring skips its wrapper {type(env).__name__}: register it without wrappers")
        records = {start: _record(env, start) for start in subject.starts(env)}
        for start, record in records.items():
            _compare(start, record, _replay(env, record), "in the same instance")
    with closing(subject.make(**more)) as env:
        for start, record in records.items():
            _compare(start, record, _replay(env, record), "in a new instance")
    number = sum(len(tokens) for tokens, _, _ in records.values())
    size = max(len(token) for tokens, _, _ in records.values() for token in tokens)
    arguments = (subject.portable_spec, {**subject.kwargs, **more}, list(records.values()))
    replayed = call("gagpo.envs.check.restoring:replays", *arguments, timeout=subject.deadline, hash_seed=1)
    for (start, record), lines in zip(records.items(), replayed, strict=True):
        _compare(start, record, lines, "in another process")
    return f"{number} states of at most {size} bytes restored in 2 instances and another process"


def replays(spec: str, kwargs: Info, records: Sequence[Record]) -> list[list[list[str]]]:
    """The replays of each record, in this process."""
    with closing(gymnasium.make(EnvSpec.from_json(spec), disable_env_checker=True, **kwargs)) as env:
        return [_replay(env, record) for record in records]


def _make(subject: Subject) -> tuple[gymnasium.Env, Info]:
    """The environment, with its expert if it has one, and the added arguments."""
    more = {} if "expert" in subject.kwargs else {"expert": True}
    try:
        return subject.make(**more), more
    except TypeError:
        return subject.make(), {}


def _require_no_save(env: gymnasium.Env, subject: Subject) -> None:
    """Without ``can_restore``, ``save`` must raise CannotRestore instead of returning a useless token."""
    save = getattr(env.unwrapped, "save", None)
    if save is None:
        return
    (start, *_) = subject.starts(env)
    env.reset(seed=start.seed, options=start.options)
    try:
        save()
    except CannotRestore:
        return
    require(False, "can_restore is False, yet save() does not raise CannotRestore")


def _record(env: Any, start: Start) -> Record:
    rng = random.Random(start.name)
    observation, info = env.reset(seed=start.seed, options=start.options)
    tokens: list[str] = []
    actions: list[str] = []
    seen = [line(observation, info)]
    while len(actions) < _TURNS:
        token = env.save()
        require(type(token) is bytes, f"{start.name}: save() returned {type(token).__name__}, not bytes")
        require(token == env.save(), f"{start.name}, turn {len(actions)}: two calls of save() differ")
        tokens.append(token.decode("latin-1"))
        actions.append(_action(env, info, rng))
        result = env.step(actions[-1])
        info = result[4]
        seen.append(line(*result))
        if result[2] or result[3]:
            break
    return tokens, actions, seen


def _action(env: Any, info: Info, rng: random.Random) -> str:
    """A mix of the expert's and random actions, to get far and off the expert's path."""
    expert = info.get("expert_action")
    if expert is not None and rng.random() < 0.7:
        return separate(str(expert))[0]
    return str(sampled_action(env, info, rng))


def _replay(env: Any, record: Record) -> list[list[str]]:
    """The results of the recorded actions from each saved state on, restoring the last state first."""
    tokens, actions, _ = record
    replayed = []
    for place in reversed(range(len(tokens))):
        seen = [line(*env.restore(tokens[place].encode("latin-1")))]
        for action in actions[place:]:
            result = env.step(action)
            seen.append(line(*result))
            if result[2] or result[3]:
                break
        replayed.append(seen)
    return replayed[::-1]


def _compare(start: Start, record: Record, replayed: list[list[str]], where: str) -> None:
    *_, recorded = record
    for place, lines in enumerate(replayed):
        pairs = itertools.zip_longest(recorded[place:], lines, fillvalue="(nothing)")
        for turn, (before, now) in enumerate(pairs, place):
            if turn == place > 0:  # restore() returns observation and info, without the reward of the step
                observation, _, _, _, info = json.loads(before)
                before = line(observation, info)
            place_name = f"{start.name}: restored to turn {place} {where}, turn {turn} differs"
            require(before == now, f"{place_name}: {contrast(before, now)}")
