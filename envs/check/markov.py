"""The promise of a key: where two turns have the same one, the same action brings the same answer."""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

import gymnasium

from gagpo.envs.base import Info, MarkovKey
from gagpo.envs.check.subject import NotJudged, Start, Subject, contrast, line, require, sampled_action

_TRIES = 6  # at each task
_TURNS = 30
_CHOICES = 3  # of the actions at a state: more would seldom be tried twice


def markov(subject: Subject) -> str:
    """Play every task in several ways and compare what follows equal keys; raises as the other promises do."""
    with closing(subject.make()) as env:
        declared: MarkovKey | None = getattr(env.unwrapped, "markov_key", None)
        require(declared in (None, "observation", "state"), f"markov_key is {declared!r}, not 'observation' or 'state'")
        met = compared = 0
        for start in subject.starts(env):
            seen: dict[tuple[str, str], str] = {}
            for number in range(_TRIES):
                for key, action, answer in _played(env, start, declared, number):
                    before = seen.setdefault((key, action), answer)
                    compared += before is not answer
                    told = f"{start.name}: at one {declared or 'state'} {key[:40]!r} {action[:40]!r} has two answers"
                    require(before == answer, f"{told}: {contrast(before, answer)}")
            met += len(seen)
    if not met:
        raise NotJudged("it gives no state and declares no markov_key: credit by states falls back on observations")
    return f"by {declared or 'state'}: {met} pairs of key and action, {compared} met again, each answered alike"


def _played(env: gymnasium.Env, start: Start, declared: MarkovKey | None, number: int) -> list[tuple[str, str, str]]:
    """Key, action and answer of each turn; turns without a key are left out, where none is declared."""
    rng = random.Random(f"{start.name} {number}")
    observation, info = env.reset(seed=start.seed, options=start.options)
    turns = []
    for _ in range(_TURNS):
        key = observation if declared == "observation" else info.get("state")
        require(key is not None or declared is None, f"{start.name}: markov_key is 'state', and info has none")
        action = _action(env, info, rng)
        observation, reward, terminated, truncated, info = env.step(action)
        if key is not None:
            turns.append((key, str(action), line(observation, reward, terminated, info.get("state"))))
        if terminated or truncated:
            break
    return turns


def _action(env: gymnasium.Env, info: Info, rng: random.Random) -> Any:
    """One of a few, so that the same is done again where one is again."""
    admissible = info.get("admissible_actions")
    if admissible and rng.random() < 0.5:
        return rng.choice(admissible[:_CHOICES])
    return sampled_action(env, info, rng, _CHOICES)
