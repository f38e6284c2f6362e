"""The promise of an environment that can be put back: from every token on, the same actions bring the same answers.

An episode is played once, partly as its expert would, and saved before every action. Then it is put back to each of
these places in turn, in the same instance, in a fresh one and in a fresh process, and played to its end again.
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

from gagpo.base.errors import InvalidArgument
from gagpo.envs.base import Info
from gagpo.envs.check.fresh_process import call
from gagpo.envs.check.subject import NotJudged, Start, Subject, contrast, line, require, sampled_action
from gagpo.envs.lookup import portable
from gagpo.envs.saved import CannotRestore
from gagpo.envs.tools import separate

_TURNS = 20  # of an episode; every turn is played as often as it has turns before it

Recorded = tuple[list[str], list[str], list[str]]  # tokens as text, actions, and what was seen: one more than actions


def restoring(subject: Subject) -> str:
    """What was seen of the promise; :class:`NotJudged` for an environment that says it cannot be put back."""
    env, more = _made(subject)
    with closing(env):
        if not getattr(env.unwrapped, "can_restore", False):
            _refuses(env, subject)
            raise NotJudged("it says that it cannot be put back into a state (can_restore is False)")
        require(env is env.unwrapped, f"it is put back without its wrapper {type(env).__name__}: register it bare")
        recorded = {start: _record(env, start) for start in subject.starts(env)}
        for start, record in recorded.items():
            _compare(start, record, _again(env, record), "in the same instance")
    with closing(subject.make(**more)) as env:
        for start, record in recorded.items():
            _compare(start, record, _again(env, record), "in a fresh instance")
    places = f"{sum(len(tokens) for tokens, _, _ in recorded.values())} places"
    size = max(len(token) for tokens, _, _ in recorded.values() for token in tokens)
    try:
        spec = portable(subject.spec) if subject.spec is not None else ""
    except InvalidArgument:
        spec = ""
    if not spec:
        return f"{places} found again in 2 instances, tokens of at most {size} bytes; no other process can build it"
    arguments = (spec, {**subject.kwargs, **more}, list(recorded.values()))
    theirs = call("gagpo.envs.check.restoring:replays", *arguments, timeout=subject.deadline, hash_seed=1)
    for (start, record), lines in zip(recorded.items(), theirs, strict=True):
        _compare(start, record, lines, "in a fresh process")
    return f"{places} found again in 2 instances and another process, tokens of at most {size} bytes"


def replays(spec: str, kwargs: Info, recorded: Sequence[Recorded]) -> list[list[list[str]]]:
    """What is seen from each token of each episode on, in this process."""
    with closing(gymnasium.make(EnvSpec.from_json(spec), disable_env_checker=True, **kwargs)) as env:
        return [_again(env, record) for record in recorded]


def _made(subject: Subject) -> tuple[gymnasium.Env, Info]:
    """The environment with its expert, whose memory is to be put back as well, where it takes one; and the arguments."""
    more = {} if "expert" in subject.kwargs else {"expert": True}
    try:
        return subject.make(**more), more
    except TypeError:
        return subject.make(), {}


def _refuses(env: gymnasium.Env, subject: Subject) -> None:
    """An environment with ``save`` that cannot be put back must say so, and not give a token that leads nowhere."""
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


def _record(env: Any, start: Start) -> Recorded:
    rng = random.Random(start.name)
    observation, info = env.reset(seed=start.seed, options=start.options)
    tokens: list[str] = []
    actions: list[str] = []
    seen = [line(observation, info)]
    while len(actions) < _TURNS:
        # Saved twice: to save changes nothing.
        token = env.save()
        require(type(token) is bytes, f"{start.name}: save() returned {type(token).__name__}, not bytes")
        require(token == env.save(), f"{start.name}, turn {len(actions)}: saved twice, the tokens differ")
        tokens.append(token.decode("latin-1"))
        actions.append(_action(env, info, rng))
        result = env.step(actions[-1])
        info = result[4]
        seen.append(line(*result))
        if result[2] or result[3]:
            break
    return tokens, actions, seen


def _action(env: Any, info: Info, rng: random.Random) -> str:
    """The expert's action or anybody's: one alone would not get far, the other not off the path."""
    expert = info.get("expert_action")
    if expert is not None and rng.random() < 0.7:
        return separate(str(expert))[0]
    return str(sampled_action(env, info, rng))


def _again(env: Any, record: Recorded) -> list[list[str]]:
    """What is seen from each token on, for the recorded actions; the last token first, so that none follows its own."""
    tokens, actions, _ = record
    found = []
    for place in reversed(range(len(tokens))):
        seen = [line(*env.restore(tokens[place].encode("latin-1")))]
        for action in actions[place:]:
            result = env.step(action)
            seen.append(line(*result))
            if result[2] or result[3]:
                break
        found.append(seen)
    return found[::-1]


def _compare(start: Start, record: Recorded, again: list[list[str]], where: str) -> None:
    *_, seen = record
    for place, lines in enumerate(again):
        # At the place itself nothing is paid: what a reset returns is what a restore returns.
        pairs = itertools.zip_longest(seen[place:], lines, fillvalue="(nothing)")
        for turn, (before, now) in enumerate(pairs, place):
            if turn == place > 0:
                before = _first(before)
            told = f"{start.name}: put back to turn {place} {where}, turn {turn} differs"
            require(before == now, f"{told}: {contrast(before, now)}")


def _first(stepped: str) -> str:
    """The observation and info of what a step returned."""
    observation, _, _, _, info = json.loads(stepped)
    return line(observation, info)
