"""Conversations from elsewhere, such as those of a person or a client, as training showed its own to the model.

:class:`TrainedChat` adds to a conversation what the prompt of training adds: its system message, examples, tools and
the text around each message of the user. :class:`ServedContext` turns the result into tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagpo.agents.chat_template import WITH_PROMPT
from gagpo.agents.context import Context, GenerationRequest, RejectedRequest
from gagpo.agents.encoding import THOUGHT
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import Message, find_prompt
from gagpo.data import Turn
from gagpo.envs.gateway.messages import Json
from gagpo.envs.tools import ToolCall

DATA = "data"
"""Key of a message that the prompt words: the texts in it that are not the prompt's own."""


@dataclass(frozen=True)
class TrainedChat:
    """Shows conversations as one context shows its turns.

    context: of training. That of a program words nothing, so its conversations stay as they are.
    """

    context: Context

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools of training, as chat templates take them."""
        return self.context.toolbox.specs if self.context.toolbox else []

    def messages(self, conversation: Sequence[Message]) -> list[Message]:
        """``conversation`` with the prompt of training.

        A conversation with a system message of its own words its prompt itself, and stays as it is.

        conversation: not empty; its last message is not the assistant's.
        """
        if isinstance(self.context, ProgramContext) or conversation[0]["role"] == "system":
            return list(conversation)
        prompt = self.context.prompt_format
        instructions = self.context.interface.instructions
        opening = [{**message, DATA: [instructions]} for message in prompt.opening(instructions)]
        if self.context.history != "full":
            return [*opening, self._window(conversation)]
        return [*opening, *self._filled(conversation)]

    def _filled(self, conversation: Sequence[Message]) -> list[Message]:
        """The messages, the last one before each answer as the templates ``first`` and ``turn`` write it."""
        prompt, instructions = self.context.prompt_format, self.context.interface.instructions
        turns = self._turns(conversation)
        messages: list[Message] = []
        num_answers = 0
        for number, message in enumerate(conversation):
            if message["role"] == "assistant":
                num_answers += 1
            elif number + 1 == len(conversation) or conversation[number + 1]["role"] == "assistant":
                observation = message["content"]
                past = turns[:num_answers]
                if past:
                    text = prompt.turn_text(instructions, past, observation, ())
                else:
                    text = prompt.first_text(instructions, observation, ())
                first = past[0].observation if past else observation
                message = {**message, "content": text, DATA: [instructions, observation, first]}
            messages.append(message)
        return messages

    def _window(self, conversation: Sequence[Message]) -> Message:
        """The single message that shows the last turns."""
        instructions = self.context.interface.instructions
        turns = self._turns(conversation)
        *turns, now = [*turns, Turn.of("", "").with_observation(_observation(conversation), None)]
        width = int(self.context.history)
        text = self.context.prompt_format.window_text(instructions, turns, now.observation, (), width)
        observations = [turn.observation for turn in turns]
        responses = [turn.response for turn in turns if turn.response in text]
        return {"role": "user", "content": text, DATA: [instructions, now.observation, *observations, *responses]}

    def _turns(self, conversation: Sequence[Message]) -> list[Turn]:
        """The answered turns of a conversation."""
        turns = []
        for number, message in enumerate(conversation):
            if message["role"] == "assistant":
                observation = _observation(conversation[:number])
                turns.append(self._read(message).with_observation(observation, None))
        return turns

    def _read(self, message: Message) -> Turn:
        functions = [call["function"] for call in message.get("tool_calls", ())]
        calls = [ToolCall(function["name"], function["arguments"]) for function in functions]
        written = self.context.call_format.write(calls) if calls else ""
        return self.context.action_format.read("\n".join(filter(None, (message["content"], written))))


def _observation(conversation: Sequence[Message]) -> str:
    """The text after the last answer of a conversation."""
    texts: list[str] = []
    for message in conversation:
        texts = [] if message["role"] == "assistant" else [*texts, message["content"]]
    return "\n".join(texts)


class ServedContext(ProgramContext):
    """Prompts of a trained model for conversations of clients, which are not those of its environment.

    trained: the context of training; None for a model of which only its folder is known. The chat template of an
        exported model then adds the prompt.
    """

    def __init__(self, tokenizer: Any, trained: Context | None = None):
        template: Mapping[str, Any] = trained.template if trained else {}
        super().__init__(tokenizer, find_prompt("plain"), template, trained.calls if trained else "auto")
        self.tool_form.options[WITH_PROMPT] = trained is None
        self._trained = TrainedChat(trained) if trained else None

    def complete(self, messages: Sequence[Message]) -> list[Message]:
        """The messages to show for those of a client."""
        return self._trained.messages(messages) if self._trained else list(messages)

    def tools_for(self, messages: Sequence[Message], tools: Sequence[Json]) -> list[Json]:
        """The tools to show: those of the request, else those of training, unless the client words the prompt."""
        words_itself = messages[0]["role"] == "system"
        if tools or self._trained is None or words_itself:
            return list(tools)
        return self._trained.tools

    def ask(
        self, turns: Sequence[Turn], observation: str, info: Mapping[str, Any]
    ) -> GenerationRequest | RejectedRequest:
        """As for a program; a response also ends at the stop strings of training."""
        request = super().ask(turns, observation, info)
        if isinstance(request, RejectedRequest) or self._trained is None:
            return request
        return request._replace(stop=(*request.stop, *self._trained.context.stop))

    def _for_template(self, message: Message) -> Message:
        if DATA not in message:
            return super()._for_template(message)
        # As a context protects its own prompt: the prompt may name the marks of a thought, and the data may not.
        plain = {key: value for key, value in message.items() if key not in (DATA, "content")}
        content = self._encoder.protect(message["content"], THOUGHT, message[DATA])
        return {**super()._for_template(plain), "content": content}
