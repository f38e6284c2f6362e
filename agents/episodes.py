"""What a rollout produces: episodes made of turns, with the very tokens the engine read and wrote."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from gagpo.envs.errors import InvalidArgument

Ids = np.ndarray  # int32[...], token ids
Decode = Callable[[int], str]  # the text of one token
Invalid = Literal["", "not parsed", "cut off", "refused"]
MOST_READ = 200  # newly read tokens written per turn
MOST_REFUSAL = 300  # characters written of the world's words about a refused action
_OF_EPISODE = ("task", "task_type", "split", "group", "sample", "seed", "temperature", "success", "outcome")
_OF_TURN = ("observation", "response", "action", "reward", "valid", "state")
_KNOWN_LATER = ("kept", "end_observation", "end_state")  # written where they are known


@dataclass
class Turn:
    """Observation in, response out, action parsed, reward back.

    prompt_ids: everything the engine read, response_ids: everything it sampled (the end token included).
    logprobs: float32, the engine's own log-probability of each response token, of the distribution it sampled from.
    reward: excludes the penalty for an invalid action.
    invalid: why the turn has no valid action, '' where it has one. ``not parsed``: the response held no action.
    ``refused``: the world did not accept the action. ``cut off``: either, of a response that is ``cut``.
    cut: the response ended at the token limit without a stop token, whatever was found in it.
    state: key of the world state in which the response was made (None where the environment cannot tell).
    trainable: False for a deliberate stray move of an expert, which must not be imitated.
    version: of the weights that sampled it, in updates of the run; None where sampling waits for every update.
    advantage, value, group_state: what credit made of the turn, the value of its state group, and which of the batch's
    state groups that is; None before credit is given and for a turn that was not trained on.
    ratios: float32, probability under the policy being trained over that of the sampler, of each response token, when
    the turn was last trained on; advantages: float32, one per response token, where credit tells them apart. Both are
    empty otherwise.
    """

    observation: str
    response: str
    action: str
    reward: float = 0.0
    invalid: Invalid = ""
    cut: bool = False
    state: str | None = None
    trainable: bool = True
    prompt_ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    response_ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    version: int | None = None
    advantage: float | None = None
    value: float | None = None
    group_state: int | None = None
    ratios: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    advantages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    @classmethod
    def of(cls, response: str, action: str | None, cut: bool = False) -> Turn:
        """A turn as an agent gives it, without what it responds to; ``action`` is None where none was found."""
        invalid: Invalid = "" if action is not None else "cut off" if cut else "not parsed"
        return cls("", response, action or "", invalid=invalid, cut=cut)

    @property
    def valid(self) -> bool:
        """An action was found and the environment accepted it."""
        return not self.invalid

    def finish(self, reward: float, accepted: bool) -> None:
        """Enter the world's answer; a turn without an action stays invalid, whatever the world makes of ''."""
        self.reward = reward
        if not accepted and self.valid:
            self.invalid = "cut off" if self.cut else "refused"


@dataclass
class Episode:
    """One try at a task. Episodes with equal ``group`` share task and start state.

    temperature: at which its responses were sampled; None where no language model played.
    outcome: what ended it: ``terminated`` by the world, ``truncated`` by a turn or context limit, ``failed`` when the
    environment broke more often than the pool forgives (such an episode is counted, never trained on).
    end_observation, end_state: what the world showed after the last turn, and its state's key; None where unknown.
    restarts: how often a broken worker made the episode start over.
    kept: whether a trainer learned from it; None where nothing was learned.
    info: the last turn's remaining scalar entries of the environment's info (score parts, verdicts, ...).
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

    @property
    def reward(self) -> float:
        """Sum of the turns' rewards, penalties excluded."""
        return float(sum(turn.reward for turn in self.turns))

    def record(self, tokens: bool = False, decode: Decode | None = None) -> dict[str, Any]:
        """The episode as JSON-ready values.

        tokens: ids and log-probabilities too. decode: gives the text of one id; with it every turn says token by token
        what was newly read (its last ``MOST_READ`` tokens), what was answered, and with which probability.

        A refused turn's ``refusal`` is what the world answered to it, at most ``MOST_REFUSAL`` characters.
        """
        turns = []
        read = np.zeros(0, np.int32)
        answers = [*(turn.observation for turn in self.turns[1:]), self.end_observation]
        for turn, answer in zip(self.turns, answers, strict=False):  # what every turn has, then what this one has
            row: dict[str, object] = {name: getattr(turn, name) for name in _OF_TURN}
            if turn.invalid:
                row["invalid"] = turn.invalid
            if turn.invalid == "refused" and answer is not None:
                row["refusal"] = answer[:MOST_REFUSAL]
            if turn.cut:
                row["cut"] = True
            for name in ("advantage", "value", "group_state", "version"):
                if getattr(turn, name) is not None:
                    row[name] = getattr(turn, name)
            if tokens:
                row["prompt_ids"] = turn.prompt_ids.tolist()
                row["response_ids"] = turn.response_ids.tolist()
                row["logprobs"] = [float(x) for x in turn.logprobs]
            if decode is not None and len(turn.response_ids):
                row["tokens"] = _tokens(turn, read, decode)
                read = np.concatenate([turn.prompt_ids, turn.response_ids])
            turns.append(row)
        return {
            **{name: getattr(self, name) for name in _OF_EPISODE},
            "reward": self.reward,
            "restarts": self.restarts,
            **{name: getattr(self, name) for name in _KNOWN_LATER if getattr(self, name) is not None},
            "info": self.info,
            "turns": turns,
        }

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> Episode:
        """The episode of a :meth:`record`; tokens come back where they were written.

        An old record says of a turn that it is invalid and not why: then its action tells. Raises KeyError or TypeError
        for a record of another form.
        """
        episode = cls(**{name: record[name] for name in (*_OF_EPISODE, "restarts", "info")})
        for name in _KNOWN_LATER:
            setattr(episode, name, record.get(name))
        for row in record["turns"]:  # its text, why it is invalid, and its tokens where they were written
            turn = Turn(**{name: row[name] for name in _OF_TURN if name != "valid"}, cut=bool(row.get("cut", False)))
            turn.invalid = row.get("invalid", "" if row["valid"] else "refused" if turn.action else "not parsed")
            if turn.invalid not in get_args(Invalid):
                raise TypeError(f"a turn is not invalid because {turn.invalid!r:.40}")
            if "response_ids" in row:
                turn.prompt_ids = np.asarray(row["prompt_ids"], np.int32)
                turn.response_ids = np.asarray(row["response_ids"], np.int32)
                turn.logprobs = np.asarray(row["logprobs"], np.float32)
            episode.turns.append(turn)
        return episode


def _tokens(turn: Turn, before: Ids, decode: Decode) -> dict[str, object]:
    """One turn token by token; ``before`` is all that was read and answered up to it."""
    known = len(before) if np.array_equal(turn.prompt_ids[: len(before)], before) else 0
    new = turn.prompt_ids[known:]
    row: dict[str, object] = {
        "prompt": len(turn.prompt_ids),
        "read": [decode(int(x)) for x in new[-MOST_READ:]],
        "text": [decode(int(x)) for x in turn.response_ids],
    }
    for name, column in (("logprob", turn.logprobs), ("ratio", turn.ratios), ("advantage", turn.advantages)):
        if len(column) == len(turn.response_ids):
            row[name] = [round(float(x), 4) for x in column]
    return row


def write_episodes(path: Path, episodes: Iterable[Episode], tokens: bool = False, decode: Decode | None = None) -> None:
    """Write one JSON object per episode and line, in ASCII: a model may write what UTF-8 cannot hold."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(episode.record(tokens, decode)) + "\n" for episode in episodes)


def read_episodes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of :func:`write_episodes`; ValueError names the file and line of a broken one."""
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise InvalidArgument(f"{path}, line {number}: not a JSON object ({error})") from None
