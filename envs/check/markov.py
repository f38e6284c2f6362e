"""Checks state keys: at equal keys, the same action must have the same result."""

from __future__ import annotations

import random
from contextlib import closing
from typing import Any

import gymnasium

from gagpo.envs.base import Info, MarkovKey
from gagpo.envs.check.subject import NotApplicable, Start, Subject, contrast, line, require, sampled_action

_EPISODES = 6  # per task
_TURNS = 30
_CHOICES = 3  # actions to choose from in a state: so few that some are repeated


def markov(subject: Subject) -> str:
    """Run several episodes of each task and compare the results of equal actions at equal keys."""
    with closing(subject.make()) as env:
        declared: MarkovKey | None = getattr(env.unwrapped, "markov_key", None)
        require(declared in (None, "observation", "state"), f"markov_key is {declared!r}, not 'observation' or 'state'")
        pairs = compared = 0
        for start in subject.starts(env):
            results: dict[tuple[str, str], str] = {}
            for attempt in range(_EPISODES):
                for key, action, result in _play(env, start, declared, attempt):
                    previous_result = results.setdefault((key, action), result)
                    compared += previous_result is not result  # setdefault returns ``result`` itself for a new pair
                    where = f"{start.name}: at {declared or 'state'} {key[:40]!r}, {action[:40]!r} has two results"
                    require(previous_result == result, f"{where}: {contrast(previous_result, result)}")
            pairs += len(results)
    if not pairs:
        raise NotApplicable("it has no state and declares no markov_key: credit by states uses observations")
    return f"by {declared or 'state'}: {pairs} pairs of key and action, {compared} repeated with equal results"


def _play(env: gymnasium.Env, start: Start, declared: MarkovKey | None, attempt: int) -> list[tuple[str, str, str]]:
    """The key, action and result of each turn; without a declared key, turns that have none are left out."""
    rng = random.Random(f"{start.name} {attempt}")
    observation, info = env.reset(seed=start.seed, options=start.options)
    turns = []
    for _ in range(_TURNS):
        key = observation if declared == "observation" else info.get("state")
        require(key is not None or declared is None, f"{start.name}: markov_key is 'state', but info has no state")
        action = _action(env, info, rng)
        observation, reward, terminated, truncated, info = env.step(action)
        # A turn that the limit cuts may earn something else: how many turns are left is not part of a state.
        if key is not None and not truncated:
            turns.append((key, str(action), line(observation, reward, terminated, info.get("state"))))
        if terminated or truncated:
            break
    return turns


def _action(env: gymnasium.Env, info: Info, rng: random.Random) -> Any:
    """One of a few actions, so that they are repeated in the same state."""
    admissible = info.get("admissible_actions")
    if admissible and rng.random() < 0.5:
        return rng.choice(admissible[:_CHOICES])
    return sampled_action(env, info, rng, _CHOICES)
