"""The history of a conversation as the token ids of a prompt.

A full conversation grows by appending. Earlier prompts and responses are the ids that the engine read and wrote, so the
engine reads only what is new, and the trainer has one row per episode in place of one per turn. Rendering the whole
conversation again would be simpler, but templates change earlier messages: many remove thoughts, some trim spaces.

A window is a new single message in each turn. Its prompts stay short in long episodes, and every turn is a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gagpo.agents.chat_template import PLACEHOLDER, ChatTemplate, fault
from gagpo.agents.control_tokens import ControlTokens
from gagpo.agents.encoding import THOUGHT, Ids
from gagpo.agents.prompts import Message, Prompt
from gagpo.agents.toolbox import Toolbox, answer_messages
from gagpo.data import Turn

_NEXT_MESSAGE = "\u241f"  # stands for the message after an answer while a template is probed
_ANSWERED = ({"role": "user", "content": "?"}, {"role": "assistant", "content": PLACEHOLDER})
"""A conversation up to an answer. What the template writes after the placeholder follows every sampled response.

System message and tools are left out: some templates would repeat them before every user message.
"""


@dataclass
class History(ABC):
    """Chooses what of an episode a prompt shows.

    The opening (system message, examples, tools) is made once: it depends on the environment alone.

    instructions: of the environment.
    admissible: whether the admissible actions are listed.
    chat: shows the tools of ``toolbox`` if there are any.
    toolbox: for a prompt with tool calls.

    Raises: TemplateFailed for a chat template that does not show the user's message.
    """

    prompt: Prompt
    instructions: str
    admissible: bool
    chat: ChatTemplate
    control: ControlTokens
    toolbox: Toolbox | None

    def __post_init__(self) -> None:
        self.encoder = self.control.encoder
        self.tools = self.encoder.protect_all(self.toolbox.specs) if self.toolbox else ()
        self.opening = self.prompt.opening(self.instructions)
        for message in self.opening:  # an example's thoughts stay those of the model
            message["content"] = self.encoder.protect(message["content"], THOUGHT, [self.instructions])
        probe: Message = {"role": "user", "content": PLACEHOLDER}
        if PLACEHOLDER not in self.chat.begin([*self.opening, probe], self.tools):
            raise fault(self.chat.tokenizer, "does not show the user's message")

    @abstractmethod
    def prompt_ids(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None) -> Ids:
        """Token ids (int32) of the prompt that shows ``observation`` after ``turns``.

        actions: the admissible ones, None where they are unknown.
        """


@dataclass
class FullHistory(History):
    """The whole conversation, which grows by appending.

    Raises: TemplateFailed for a chat template that does not show a second message of the user.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.chat.shows_tools:  # with a place for tools, later messages are answers to calls
            rendered = self.chat.render([*_ANSWERED, {"role": "user", "content": _NEXT_MESSAGE}])
            _, answer, after = rendered.partition(PLACEHOLDER)
            if not answer:
                raise fault(self.chat.tokenizer, "does not show every message")
            if _NEXT_MESSAGE not in after:
                raise fault(self.chat.tokenizer, "does not show a second user message")

    def prompt_ids(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None) -> Ids:
        listed_actions = actions if actions and self.admissible else ()
        contents = [self.instructions, observation, *listed_actions]
        if not turns:
            text = self.prompt.first_text(self.instructions, observation, listed_actions)
            message: Message = {"role": "user", "content": self.encoder.protect(text, THOUGHT, contents)}
            return self.encoder.encode(self.chat.begin([*self.opening, message], self.tools))
        last = turns[-1]
        messages: list[Message] = [{"role": "user"}]
        if self.toolbox:
            # All messages after the first answer calls: templates that keep thoughts between calls then keep them.
            messages = answer_messages(last.calls, observation)
            observation = messages[-1]["content"]
            for message in messages[:-1]:
                message["content"] = self.encoder.protect(message["content"])
        text = self.prompt.turn_text(self.instructions, turns, observation, listed_actions)
        contents = [self.instructions, observation, turns[0].observation, *listed_actions]
        messages[-1]["content"] = self.encoder.protect(text, THOUGHT, contents)
        _, answer, after = self.chat.render([*_ANSWERED, *messages]).partition(PLACEHOLDER)
        if not answer:
            raise fault(self.chat.tokenizer, "does not show every message")
        response_ids, text_after = self.control.join(last.response_ids, after)
        return np.concatenate([last.prompt_ids, response_ids, self.encoder.encode(text_after)])


@dataclass
class WindowHistory(History):
    """A single new message in each turn, with the task and the last turns.

    width: number of earlier turns.
    """

    width: int

    def prompt_ids(self, turns: Sequence[Turn], observation: str, actions: Sequence[str] | None) -> Ids:
        listed_actions = actions if actions and self.admissible else ()
        text = self.prompt.window_text(self.instructions, turns, observation, listed_actions, self.width)
        observations = [turn.observation for turn in turns]
        # A response that the window does not show must not decide whether its thought marks are text.
        responses = [turn.response for turn in turns if turn.response in text]
        contents = [self.instructions, observation, *listed_actions, *observations, *responses]
        message: Message = {"role": "user", "content": self.encoder.protect(text, THOUGHT, contents)}
        return self.encoder.encode(self.chat.begin([*self.opening, message], self.tools))
