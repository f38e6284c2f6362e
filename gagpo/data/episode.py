"""An episode: one attempt at a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gagpo.data.turn import Turn

Decode = Callable[[Sequence[int]], str]  # the text of tokens, with special tokens visible
MOST_SENT = 2000  # new tokens of a prompt that are written as text, except in the first turn


@dataclass
class Episode:
    """One attempt at a task. Episodes with equal ``group`` share task and start state.

    task: id of the task.
    sample: number of the episode within the group.
    seed: of the agent's choices.
    temperature: of its responses; None if no language model played.
    outcome: ``terminated`` by the environment, ``truncated`` by a turn or context limit, or ``failed`` after too many
        failures of the environment (counted, never trained on).
    restarts: how often the episode restarted because its worker failed.
    kept: whether it was trained on; None if there was no training.
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
    kept: bool | None = None
    end_observation: str | None = None
    end_state: str | None = None
    info: dict[str, Any] = field(default_factory=dict)
    environment: str | None = None

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards, penalties excluded."""
        return float(sum(turn.reward for turn in self.turns))

    def note_sent(self, decode: Decode) -> None:
        """Set ``sent`` of every turn from its prompt's tokens."""
        for turn, text in zip(self.turns, prompts(self.turns, decode), strict=True):
            turn.sent = text


def prompts(turns: Sequence[Turn], decode: Decode) -> Iterator[str]:
    """``sent`` of each turn, else the new tokens of its prompt as text; later turns the last ``MOST_SENT``."""
    before = np.zeros(0, np.int32)
    for turn in turns:
        known = len(before) if np.array_equal(turn.prompt_ids[: len(before)], before) else 0
        new = turn.prompt_ids[known:]
        kept = new[-MOST_SENT:] if len(before) else new
        yield turn.sent or "… " * (len(kept) < len(new)) + decode(kept.tolist())
        before = np.concatenate([turn.prompt_ids, turn.response_ids])
