"""A turn of an episode: what was sampled, and what the environment answered.

Turns are frozen, so that no stage changes what another one has read. What training computes for a turn stands in a
record of its own (:mod:`gagpo.data.turn_credit`), not in more fields here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

Ids = np.ndarray  # int32[...], token ids
Invalid = Literal["", "not parsed", "cut off", "refused", "withheld"]

INVALID_REASONS: dict[Invalid, str] = {
    "not parsed": "no action was found in the response",
    "cut off": "cut off at the token limit",
    "refused": "refused by the environment",
    "withheld": "the server gave a refusal, or its filter blocked the answer",
}
"""Why a turn has no valid action, with a sentence for people. ``cut off`` is either of the first and the third, in a
response that ended at the token limit; ``withheld`` does not count as an invalid turn of the model."""

NO_IDS = np.zeros(0, np.int32)
NO_LOGPROBS = np.zeros(0, np.float32)


class Call(NamedTuple):
    """One tool call of a turn.

    action: what the environment gets, '' for an invalid call.
    error: why the call is invalid.
    answer: what the model gets, None until the environment has answered.
    """

    action: str
    error: str = ""
    id: str = ""
    answer: str | None = None

    def reply(self, observation: str) -> str:
        """The answer to the call, after which the environment shows ``observation``."""
        return f"{self.error}\n{observation}".strip() if self.error else observation


@dataclass(frozen=True)
class Turn:
    """Observation in, response out, action parsed, reward back.

    A turn does not change: every stage returns a new one. An agent samples it; the rollout adds the observation that
    was responded to (:meth:`with_observation`) and what the environment answers (:meth:`with_result`,
    :meth:`with_answer`).

    observation: what the environment showed.
    response: the text that answered it.
    action: what was parsed from it; of several calls one per line.
    reward: sum over the turn's calls, without the penalty for an invalid action.
    invalid: why the turn has no valid action, '' if it has one; see ``INVALID_REASONS``.
    cut: whether the response ended at the token limit without a stop token.
    state: state key before the action; None if the environment has none.
    screenshot: a PNG of the page before the action in base64; '' if the environment takes none.
    diff: what the action changed, a line each: ``+`` added, ``-`` removed, others name it; '' if none is reported.
    trainable: False for a deliberate mistake of an expert, which must not be imitated.
    prompt_ids: int32, all tokens that the engine read.
    sent: the prompt as text, in later turns of a conversation only what is new in it: with special tokens, or the
        messages to a model behind a server. '' if it was not noted.
    response_ids: int32, the sampled tokens, including the end token.
    logprobs: float32, of each response token under the distribution it was sampled from.
    version: number of updates of the weights that sampled it; None if sampling waits for every update.
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
    prompt_ids: Ids = field(default_factory=lambda: NO_IDS)
    sent: str = ""
    response_ids: Ids = field(default_factory=lambda: NO_IDS)
    logprobs: np.ndarray = field(default_factory=lambda: NO_LOGPROBS)
    version: int | None = None
    calls: tuple[Call, ...] = ()
    completion: str = ""
    sampled: bool = True
    screenshot: str = ""
    diff: str = ""

    @classmethod
    def of(cls, response: str, action: str | None, cut: bool = False) -> Turn:
        """A turn without its observation. action: None if the response has none."""
        invalid: Invalid = ""
        if action is None and cut:
            invalid = "cut off"
        elif action is None:
            invalid = "not parsed"
        return cls("", response, action or "", invalid=invalid, cut=cut)

    @classmethod
    def of_calls(cls, response: str, calls: Sequence[Call], cut: bool = False) -> Turn:
        """A turn of tool calls without its observation; one invalid call makes the turn invalid."""
        action = "\n".join(call.action for call in calls if call.action)
        is_invalid = any(call.error for call in calls)
        turn = cls.of(response, None if is_invalid else action, cut)
        return replace(turn, action=action, calls=tuple(calls))

    @classmethod
    def of_actions(cls, actions: Sequence[str]) -> Turn:
        """A turn whose response is one action, or several calls, one per line (see ``gagpo.envs.tools.separate``)."""
        response = "\n".join(actions)
        if len(actions) == 1:
            return cls.of(response, response)
        return cls.of_calls(response, [Call(action) for action in actions])

    @classmethod
    def rejection(cls, completion: str) -> Turn:
        """The answer to a request that cannot be shown to the model."""
        return cls("", "", "", completion=completion, sampled=False)

    # What was sampled -------------------------------------------------------------------------------------------------

    @property
    def sent_action(self) -> str:
        """What the pool gets for the turn: a program's completion, the first of several calls, or the action."""
        if self.completion:
            return self.completion
        if self.calls:  # the others follow when the environment has answered the one before
            return self.calls[0].action
        return self.action

    @property
    def valid(self) -> bool:
        """Whether the response has an action and the environment accepted it."""
        return not self.invalid

    # What the environment answered ------------------------------------------------------------------------------------

    def with_observation(self, observation: str, state: str | None, screenshot: str = "") -> Turn:
        """The turn with the observation that it responds to, and the state key and the screenshot there."""
        return self._with(observation=observation, state=state, screenshot=screenshot)

    def with_result(self, reward: float, accepted: bool, diff: str = "") -> Turn:
        """The turn after one of its actions; a turn without a valid action stays invalid."""
        invalid = self.invalid
        if not accepted and self.valid:
            invalid = "cut off" if self.cut else "refused"
        diffs = "\n".join(filter(None, (self.diff, diff)))
        return self._with(reward=self.reward + reward, invalid=invalid, diff=diffs)

    def with_answer(self, observation: str) -> Turn:
        """The turn with ``observation`` as the answer to its first call without one."""
        calls = list(self.calls)
        index = next(number for number, call in enumerate(calls) if call.answer is None)
        calls[index] = calls[index]._replace(answer=calls[index].reply(observation))
        return self._with(calls=tuple(calls))

    def _with(self, **fields: Any) -> Turn:
        """A copy with other fields, faster than ``dataclasses.replace`` by several times: every step copies a turn."""
        # A frozen dataclass can only be filled past its __setattr__; nobody else has seen this object yet.
        turn = object.__new__(Turn)
        turn.__dict__.update(self.__dict__, **fields)
        return turn

    @property
    def pending_action(self) -> str | None:
        """The action of the first call without an answer, None if all have one."""
        return next((call.action for call in self.calls if call.answer is None), None)

    @property
    def answers(self) -> str:
        """The answers to its calls so far, as one text."""
        return "\n".join(call.answer for call in self.calls if call.answer is not None)
