"""Checks that observations do not reveal the state key, the admissible actions or the answer."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing

from gagpo.envs.base import Info
from gagpo.envs.check.subject import NotApplicable, Start, Subject, require, walk

ANSWER = re.compile(r"(?i)(^|_)(answer|gold|solution|target|label|walkthrough|expert|ground_truth)")
HIDDEN = re.compile(r"(?i)^(state|state_key|admissible_actions|admissible_commands)$")
_FEWEST_ACTIONS = 5  # a shorter list of actions may be part of a sentence
_FEWEST_EPISODES = 3  # a short answer may be part of a question by chance, but not of every question


def leaks(subject: Subject) -> str:
    """Check that no observation contains the state key, all admissible actions, or the answer."""
    num_observations = 0
    with closing(subject.make()) as env:
        starts = subject.starts(env)
        starts_with_answer: list[Start] = []  # episodes whose first observation contains their answer
        has_secrets = False  # whether info has anything to look for
        for start in starts:
            for turn, (_, (observation, *_, info)) in enumerate(itertools.islice(walk(env, start), 6)):
                where = f"{start.name}, turn {turn}"
                names = [name for name in _keys(observation) if HIDDEN.search(name) or ANSWER.search(name)]
                require(not names, f"{where}: the observation has a field {names[:1]}, which an agent may not see")
                text = observation if isinstance(observation, str) else json.dumps(observation, default=repr)
                _require_hidden(text, info, where)
                answers = [value for name, value in info.items() if ANSWER.search(name)]
                has_secrets |= bool(any(answers) or info.get("state") or info.get("admissible_actions"))
                if turn == 0 and any(_contains(text, value) for value in answers):
                    starts_with_answer.append(start)
                num_observations += 1
        everywhere = len(starts_with_answer) == len(starts) and len(starts) >= _FEWEST_EPISODES
        require(not everywhere, f"every first observation contains the answer from info, such as {starts[0].name}")
    if not has_secrets:
        raise NotApplicable("info has no state, admissible actions or answer to look for in observations")
    return f"{num_observations} observations do not show the state key, the answer or all admissible actions"


def _require_hidden(text: str, info: Info, where: str) -> None:
    """Fail if ``text`` contains the state key or all admissible actions."""
    state = info.get("state")
    actions = info.get("admissible_actions")
    if isinstance(state, str) and len(state) >= 8:
        require(state not in text, f"{where}: the observation contains the state key {state[:40]!r}")
    if actions and len(actions) >= _FEWEST_ACTIONS:
        lists_all = all(str(action) in text for action in actions)
        require(not lists_all, f"{where}: the observation lists all {len(actions)} admissible actions")


def _contains(text: str, answer: object) -> bool:
    """Whether ``text`` contains ``answer`` as whole words."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return False
    phrase = str(answer).strip()
    return bool(phrase) and re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def _keys(observation: object) -> Iterator[str]:
    """The names of all fields of a structured observation."""
    if isinstance(observation, Mapping):
        for name, value in observation.items():
            yield str(name)
            yield from _keys(value)
    elif isinstance(observation, list | tuple):
        for value in observation:
            yield from _keys(value)
