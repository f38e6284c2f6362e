"""Does the agent get to read what it is to find out?

Whoever serves an environment, or pastes a whole observation into a prompt, may hand the agent more than its text: the
key of the true state, the list of good actions, the solution. Each is looked for in what ``reset`` and ``step`` show.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing

from gagpo.envs.base import Info
from gagpo.envs.check.subject import NotJudged, Start, Subject, require, walk

ANSWER = re.compile(r"(?i)(^|_)(answer|gold|solution|target|label|walkthrough|expert|ground_truth)")
HIDDEN = re.compile(r"(?i)^(state|state_key|admissible_actions|admissible_commands)$")
_FEWEST_ACTIONS = 5  # a list of fewer good actions may be part of a sentence
_FEWEST_EPISODES = 3  # a short answer may stand in a question by chance, but not in every one


def leaks(subject: Subject) -> str:
    """The promise that no observation holds the state key, all admissible actions, or the answer."""
    looked = 0
    with closing(subject.make()) as env:
        starts = subject.starts(env)
        answered: list[Start] = []  # episodes whose first observation holds their answer
        knows = False  # whether info has anything that could be found
        for start in starts:
            for turn, (_, (observation, *_, info)) in enumerate(itertools.islice(walk(env, start), 6)):
                # Fields by name, state and actions by their text; an answer counts where every episode begins with it.
                where = f"{start.name}, turn {turn}"
                names = [name for name in _keys(observation) if HIDDEN.search(name) or ANSWER.search(name)]
                require(not names, f"{where}: the observation has a field {names[:1]}, which an agent may not see")
                text = observation if isinstance(observation, str) else json.dumps(observation, default=repr)
                knows |= _look(text, info, where)
                answers = [value for name, value in info.items() if ANSWER.search(name) and _holds(text, value)]
                knows |= any(ANSWER.search(name) and value for name, value in info.items())
                if turn == 0 and answers:
                    answered.append(start)
                looked += 1
        everywhere = len(answered) == len(starts) and len(starts) >= _FEWEST_EPISODES
        require(
            not everywhere, f"every first observation holds the answer that info holds, as that of {starts[0].name}"
        )
    if not knows:
        raise NotJudged("info holds neither a state nor admissible actions nor an answer to look for in observations")
    return f"{looked} observations show neither state key nor answer nor all admissible actions"


def _look(text: str, info: Info, where: str) -> bool:
    """Look for the state key and the admissible actions in ``text``; whether there was anything to look for."""
    state, actions = info.get("state"), info.get("admissible_actions")
    if isinstance(state, str) and len(state) >= 8:
        require(state not in text, f"{where}: the observation holds the key of the true state, {state[:40]!r}")
    if actions and len(actions) >= _FEWEST_ACTIONS:
        require(
            not all(str(action) in text for action in actions),
            f"{where}: the observation lists all {len(actions)} admissible actions",
        )
    return bool(state or actions)


def _holds(text: str, answer: object) -> bool:
    """Whether the ``text`` holds the ``answer`` as words of their own."""
    words = str(answer).strip() if isinstance(answer, str | int | float) and not isinstance(answer, bool) else ""
    return bool(words) and re.search(rf"(?<!\w){re.escape(words)}(?!\w)", text) is not None


def _keys(observation: object) -> Iterator[str]:
    """The names of all fields of a structured observation."""
    if isinstance(observation, Mapping):
        for name, value in observation.items():
            yield str(name)
            yield from _keys(value)
    elif isinstance(observation, list | tuple):
        for value in observation:
            yield from _keys(value)
