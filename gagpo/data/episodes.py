"""Episodes and their turns, with the tokens that the engine read and sampled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from gagpo.base.errors import InvalidArgument

Ids = np.ndarray  # int32[...], token ids
Decode = Callable[[Sequence[int]], str]  # the text of tokens, with special tokens visible
Invalid = Literal["", "not parsed", "cut off", "refused", "withheld"]
MOST_SENT = 2000  # new tokens of a prompt that are written as text, except in the first turn
MOST_REFUSAL = 300  # characters written of the environment's answer to a refused action
_OF_EPISODE = ("task", "task_type", "split", "group", "sample", "seed", "temperature", "success", "outcome")
_OF_TURN = ("observation", "response", "action", "reward", "valid", "state")
_KNOWN_LATER = ("environment", "kept", "end_observation", "end_state")  # written if they are known


class Call(NamedTuple):
    """One tool call of a turn.

    action: what the environment gets, '' for an invalid call.
    error: why the call is invalid.
    answer: what the model gets, None until it is known.
    """

    action: str
    error: str = ""
    id: str = ""
    answer: str | None = None

    def reply(self, observation: str) -> str:
        """The answer to the call, after which the environment shows ``observation``."""
        return f"{self.error}\n{observation}".strip() if self.error else observation


@dataclass
class Turn:
    """Observation in, response out, action parsed, reward back.

    observation: what the environment showed.
    response: the text that answered it.
    action: what was parsed from it; of several calls one per line.
    reward: sum over the turn's calls, without the penalty for an invalid action.
    invalid: why the turn has no valid action, '' if it has one. ``not parsed``: no action in the response. ``refused``:
        the environment did not accept it. ``cut off``: either, in a response that is ``cut``. ``withheld``: the filter
        of a server, or a refusal, in place of an answer; it does not count as an invalid turn of the model.
    cut: whether the response ended at the token limit without a stop token.
    state: state key before the action; None if the environment has none.
    trainable: False for a deliberate mistake of an expert, which must not be imitated.
    prompt_ids: int32, all tokens that the engine read.
    sent: the prompt as text, in later turns of a conversation only what is new in it: with special tokens, or the
        messages to a model behind a server. '' if it was not noted.
    response_ids: int32, the sampled tokens, including the end token.
    logprobs: float32, of each response token under the distribution it was sampled from.
    version: number of updates of the weights that sampled it; None if sampling waits for every update.
    advantage, value, group_state: advantage of the turn, value of its state group and the group's number in the batch;
        None before credit assignment and for turns that were not trained on.
    ratios: float32, trained policy over sampler, for each response token at the last update; empty before.
    gate_weights: float32, what the gate left of each response token's gradient at the last update, 0 where it was
        clipped; empty before.
    advantages: float32, one per response token if credit differs between them, else empty.
    calls: the tool calls of the response, in order.
    completion: what the pool of a program gets: the action with ids, token counts and log-probabilities; else ''.
    sampled: False for the answer to a program's request that the model was not shown; it is no part of the episode.
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
    sent: str = ""
    response_ids: Ids = field(default_factory=lambda: np.zeros(0, np.int32))
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    version: int | None = None
    advantage: float | None = None
    value: float | None = None
    group_state: int | None = None
    ratios: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    gate_weights: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    advantages: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    calls: list[Call] = field(default_factory=list)
    completion: str = ""
    sampled: bool = True

    @classmethod
    def rejecting(cls, completion: str) -> Turn:
        """The answer to a request that cannot be shown to the model."""
        turn = cls("", "", "", completion=completion)
        turn.sampled = False
        return turn

    @classmethod
    def of(cls, response: str, action: str | None, cut: bool = False) -> Turn:
        """A turn without its observation. action: None if none was found."""
        invalid: Invalid = "" if action is not None else "cut off" if cut else "not parsed"
        return cls("", response, action or "", invalid=invalid, cut=cut)

    @classmethod
    def calling(cls, response: str, calls: list[Call], cut: bool = False) -> Turn:
        """A turn of tool calls without its observation; one invalid call makes the turn invalid."""
        action = "\n".join(call.action for call in calls if call.action)
        turn = cls.of(response, None if any(call.error for call in calls) else action, cut)
        turn.action, turn.calls = action, calls
        return turn

    @classmethod
    def acting(cls, actions: Sequence[str]) -> Turn:
        """A turn whose response is one action, or several calls, one per line (see ``gagpo.envs.tools.separate``)."""
        response = "\n".join(actions)
        if len(actions) == 1:
            return cls.of(response, response)
        return cls.calling(response, [Call(action) for action in actions])

    @property
    def upcoming(self) -> str | None:
        """The action of the first call without an answer, None if all have one."""
        return next((call.action for call in self.calls if call.answer is None), None)

    def answer(self, observation: str) -> str:
        """Answer the first call without an answer; returns all answers so far as one text."""
        place = next(i for i, call in enumerate(self.calls) if call.answer is None)
        call = self.calls[place]
        self.calls[place] = call._replace(answer=call.reply(observation))
        return "\n".join(one.answer for one in self.calls if one.answer is not None)

    @property
    def valid(self) -> bool:
        """Whether an action was found and accepted."""
        return not self.invalid

    def finish(self, reward: float, accepted: bool) -> None:
        """Add the result of an action; a turn without an action stays invalid."""
        self.reward += reward
        if not accepted and self.valid:
            self.invalid = "cut off" if self.cut else "refused"


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
        for turn, text in zip(self.turns, self._prompts(decode), strict=True):
            turn.sent = text

    def _prompts(self, decode: Decode) -> Iterator[str]:
        """``sent`` of each turn, else the new tokens of its prompt as text; later turns the last ``MOST_SENT``."""
        before = np.zeros(0, np.int32)
        for turn in self.turns:
            known = len(before) if np.array_equal(turn.prompt_ids[: len(before)], before) else 0
            new = turn.prompt_ids[known:]
            kept = new[-MOST_SENT:] if len(before) else new
            yield turn.sent or "… " * (len(kept) < len(new)) + decode(kept.tolist())
            before = np.concatenate([turn.prompt_ids, turn.response_ids])

    def record(self, tokens: bool = False, decode: Decode | None = None) -> dict[str, Any]:
        """The episode as JSON-ready values.

        tokens: include ids and log-probabilities.
        decode: if given, turns have their prompt as text and their response token by token with log-probabilities.
        """
        turns = []
        prompts = [turn.sent for turn in self.turns] if decode is None else self._prompts(decode)
        answers = [*(turn.observation for turn in self.turns[1:]), self.end_observation]
        for turn, answer, prompt in zip(self.turns, answers, prompts, strict=False):
            row: dict[str, object] = {name: getattr(turn, name) for name in _OF_TURN}
            if prompt:
                row["sent"] = prompt
            if turn.invalid:
                row["invalid"] = turn.invalid
            if turn.invalid == "refused" and answer is not None:
                row["refusal"] = answer[:MOST_REFUSAL]
            if turn.cut:
                row["cut"] = True
            if turn.calls:  # the next observation is the answer to a single call
                kept = [one if len(turn.calls) > 1 else one._replace(answer=None) for one in turn.calls]
                row["calls"] = [{name: value for name, value in one._asdict().items() if value} for one in kept]
            for name in ("advantage", "value", "group_state", "version"):
                if getattr(turn, name) is not None:
                    row[name] = getattr(turn, name)
            if tokens:
                row["prompt_ids"] = turn.prompt_ids.tolist()
                row["response_ids"] = turn.response_ids.tolist()
                row["logprobs"] = [float(x) for x in turn.logprobs]
            if decode is not None and len(turn.response_ids):
                row["tokens"] = _tokens(turn, decode)
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
        """The episode of a :meth:`record`. Raises: InvalidArgument naming the first wrong key."""
        if not isinstance(record, dict):
            raise InvalidArgument("not an object")
        episode = cls(**_checked(record, (*_OF_EPISODE, "restarts", "info")))
        for name, value in _checked({name: record.get(name) for name in _KNOWN_LATER}, _KNOWN_LATER).items():
            setattr(episode, name, value)
        for number, row in enumerate(_checked(record, ("turns",))["turns"]):
            try:
                episode.turns.append(_turn(row))
            except InvalidArgument as error:
                raise InvalidArgument(f"turn {number}: {error}") from None
        return episode


def _turn(row: object) -> Turn:
    if not isinstance(row, dict):
        raise InvalidArgument("not an object")
    values = _checked(row, _OF_TURN)
    valid = values.pop("valid")
    given = _checked({"cut": False, "invalid": None, "sent": "", **row}, ("cut", "invalid", "sent"))
    turn = Turn(**values, cut=given["cut"], sent=given["sent"])
    turn.calls = [_call(one) for one in _checked({"calls": [], **row}, ("calls",))["calls"]]
    turn.invalid = given["invalid"] or ""
    if turn.valid != valid:
        raise InvalidArgument("keys 'valid' and 'invalid' contradict each other")
    if "response_ids" in row:
        ids = _checked(row, ("prompt_ids", "response_ids", "logprobs"))
        try:
            turn.prompt_ids = np.asarray(ids["prompt_ids"], np.int32).reshape(-1)
            turn.response_ids = np.asarray(ids["response_ids"], np.int32).reshape(-1)
            turn.logprobs = np.asarray(ids["logprobs"], np.float32).reshape(-1)
        except (ValueError, TypeError, OverflowError):
            raise InvalidArgument("keys 'prompt_ids', 'response_ids' and 'logprobs' must be lists of numbers") from None
    return turn


def _call(row: object) -> Call:
    if not isinstance(row, dict) or not all(name in Call._fields and _is_text(row[name]) for name in row):
        raise InvalidArgument(f"key 'calls' must be a list of objects of {', '.join(Call._fields)}, each a text")
    return Call(**{"action": "", **row})


def _checked(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The named values of a record. Raises: InvalidArgument for a missing or wrong one."""
    for name in names:
        expected, holds = _KINDS[name]
        if name not in record:
            raise InvalidArgument(f"key {name!r} is missing")
        if not holds(record[name]):
            raise InvalidArgument(f"key {name!r} must be {expected}, got {record[name]!r:.40}")
    return {name: record[name] for name in names}


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {  # by key: what it must be, and the check
    **dict.fromkeys(("task", "task_type", "split", "observation", "response", "action", "sent"), ("a text", _is_text)),
    **dict.fromkeys(("group", "sample", "seed", "restarts"), ("a whole number of at least 0", _is_count)),
    **dict.fromkeys(("success", "valid", "cut"), ("true or false", lambda x: isinstance(x, bool))),
    **dict.fromkeys(
        ("turns", "prompt_ids", "response_ids", "logprobs", "calls"), ("a list", lambda x: isinstance(x, list))
    ),
    **dict.fromkeys(
        ("state", "environment", "end_observation", "end_state"), ("a text or null", lambda x: x is None or _is_text(x))
    ),
    "reward": ("a finite number", _is_number),
    "temperature": ("a finite number or null", lambda x: x is None or _is_number(x)),
    "kept": ("true, false or null", lambda x: x is None or isinstance(x, bool)),
    "outcome": ("terminated, truncated or failed", lambda x: x in ("terminated", "truncated", "failed")),
    "info": ("an object", lambda x: isinstance(x, dict)),
    "invalid": ("why a turn is invalid", lambda x: x is None or x in get_args(Invalid)),
}


def _tokens(turn: Turn, decode: Decode) -> dict[str, object]:
    """The response of a turn token by token, and the length of its prompt."""
    text = [decode([token]) for token in turn.response_ids.tolist()]
    row: dict[str, object] = {"prompt": len(turn.prompt_ids), "text": text}
    columns = {
        "logprob": turn.logprobs,
        "ratio": turn.ratios,
        "gate_weight": turn.gate_weights,
        "advantage": turn.advantages,
    }
    for name, column in columns.items():
        if len(column) == len(turn.response_ids):
            row[name] = [round(float(x), 4) for x in column]
    return row


def episodes_in(path: Path) -> Iterator[Episode]:
    """Yield the episodes of a file. Raises: InvalidArgument naming file, line and key of the first damaged one."""
    for number, record in enumerate(read_episodes(path), 1):
        try:
            yield Episode.from_record(record)
        except InvalidArgument as error:
            raise InvalidArgument(f"{path}, line {number}: not an episode ({error})") from None


def write_episodes(path: Path, episodes: Iterable[Episode], tokens: bool = False, decode: Decode | None = None) -> None:
    """Write one line of JSON per episode, in ASCII because a response may hold half a surrogate pair."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(episode.record(tokens, decode)) + "\n" for episode in episodes)


def read_episodes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of :func:`write_episodes`. Raises: InvalidArgument naming file and line of a broken one."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidArgument(f"{path}, line {number}: not a JSON object ({error})") from None
