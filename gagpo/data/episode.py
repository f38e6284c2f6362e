"""An episode: one attempt at a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gagpo.data.turn import NO_IDS, Turn

Decode = Callable[[Sequence[int]], str]  # the text of tokens, with special tokens visible
SUCCESS_ASSUMED = "success_assumed"
"""Entry of ``info`` if the environment reports no success, and a reward above 0 that is not 1 counts as one."""

MOST_SENT = 2000  # new tokens of a prompt that are written as text, except in the first turn


@dataclass
class Episode:
    """One attempt at a task. Episodes with equal ``group`` share task and start state.

    The rollout appends turns and replaces the last one while its environment answers.

    task: id of the task.
    sample: number of the episode within the group.
    seed: of the agent's choices.
    temperature: of its responses; None if no language model sampled them.
    outcome: ``terminated`` by the environment, ``truncated`` by a turn or context limit, or ``failed`` after too many
        failures of the environment (counted, never trained on).
    restarts: how often the episode restarted because its worker failed.
    end_observation: observation after the last turn; None if unknown.
    end_state: state key after the last turn; None if unknown.
    info: the other scalar entries of the environment's info at the end.
    environment: name of its environment in a run with several, also the prefix of ``task``.
    """

    task: str
    task_type: str = ""
    split: str = ""
    group: int = 0
    sample: int = 0
    seed: int = 0
    temperature: float | None = None
    turns: list[Turn] = field(default_factory=list)
    success: bool = False
    outcome: str = "truncated"
    restarts: int = 0
    end_observation: str | None = None
    end_state: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards, penalties excluded."""
        return float(sum(turn.reward for turn in self.turns))

    @property
    def success_assumed(self) -> bool:
        """Whether ``success`` only says that the reward is above 0."""
        return bool(self.info.get(SUCCESS_ASSUMED))

    def note_sent(self, decode: Decode) -> None:
        """Set ``sent`` of every turn from its prompt's tokens."""
        texts = prompt_texts(self.turns, decode)
        self.turns = [replace(turn, sent=text) for turn, text in zip(self.turns, texts, strict=True)]


def prompt_texts(turns: Sequence[Turn], decode: Decode) -> Iterator[str]:
    """``sent`` of each turn, else the new tokens of its prompt as text; of later turns the last ``MOST_SENT``."""
    before = NO_IDS
    for turn in turns:
        continues = np.array_equal(turn.prompt_ids[: len(before)], before)
        new_ids = turn.prompt_ids[len(before) if continues else 0 :]
        recent_ids = new_ids[-MOST_SENT:] if len(before) else new_ids
        ellipsis = "… " if len(recent_ids) < len(new_ids) else ""
        yield turn.sent or ellipsis + decode(recent_ids.tolist())
        before = np.concatenate([turn.prompt_ids, turn.response_ids])
