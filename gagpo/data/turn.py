"""A turn of an episode, with the tokens that the engine read and sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

Ids = np.ndarray  # int32[...], token ids
Invalid = Literal["", "not parsed", "cut off", "refused", "withheld"]


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
