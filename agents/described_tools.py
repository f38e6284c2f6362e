"""Tools in plain messages, for models whose chat template has no place for them.

The system message describes the tools, a call is text of the assistant, and the answers to calls are a message of the
user. For the tool ``price`` and the format ``hermes``, a model reads and writes:

    system     You can call these tools. Each line describes one, with a JSON schema of its arguments:
               <tools>
               {"name": "price", "description": "What it costs.", "parameters": {"type": "object", ...}}
               </tools>
               To call a tool, write its name and its arguments like this:
               <tool_call>
               {"name": "...", "arguments": {...}}
               </tool_call>
               The answer to a call follows between <tool_response> and </tool_response>.
    user       What does the lamp cost?
    assistant  <tool_call>
               {"name": "price", "arguments": {"item": "lamp"}}
               </tool_call>
    user       <tool_response>
               5
               </tool_response>
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gagpo.agents.call_formats import CallFormat
from gagpo.agents.prompts import Message
from gagpo.envs.tools import ToolCall


@dataclass(frozen=True)
class DescribedTools:
    """Writes tools, calls and their answers as plain messages.

    form: how calls are written.
    """

    form: CallFormat

    def with_tools(
        self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> list[Mapping[str, Any]]:
        """``chat`` with the description of ``tools`` at the end of its system message.

        tools: as chat templates take them.
        """
        described = self._description(tools)
        if chat and chat[0]["role"] == "system":
            return [{"role": "system", "content": f"{chat[0]['content']}\n\n{described}"}, *chat[1:]]
        return [{"role": "system", "content": described}, *chat]

    def plain(self, chat: Sequence[Mapping[str, Any]]) -> list[Message]:
        """``chat`` with roles and contents only.

        Answers to calls become one message with the user's message next to them, because some templates require the
        roles to alternate.
        """
        messages: list[Message] = []
        follows_answer = False
        for message in chat:
            is_answer = message["role"] == "tool"
            text = self._text(message)
            role = "user" if is_answer else message["role"]
            after_user = bool(messages) and messages[-1]["role"] == role == "user"
            if after_user and (is_answer or follows_answer):
                messages[-1] = {"role": role, "content": f"{messages[-1]['content']}\n{text}"}
            else:
                messages.append({"role": role, "content": text})
            follows_answer = is_answer
        return messages

    def _description(self, tools: Sequence[Mapping[str, Any]]) -> str:
        lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
        return "\n".join(
            (
                "You can call these tools. Each line describes one, with a JSON schema of its arguments:",
                "<tools>",
                *lines,
                "</tools>",
                "To call a tool, write its name and its arguments like this:",
                self.form.example,
                "The answer to a call follows between <tool_response> and </tool_response>.",
            )
        )

    def _text(self, message: Mapping[str, Any]) -> str:
        """The content of a message, with its calls or as an answer to one."""
        content = str(message.get("content") or "")
        if message["role"] == "tool":
            return f"<tool_response>\n{content}\n</tool_response>"
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        if not functions:
            return content
        calls = self.form.write([ToolCall(function["name"], function["arguments"]) for function in functions])
        return f"{content}\n{calls}" if content else calls


def has_tool_messages(chat: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation contains calls or their answers."""
    return any(message["role"] == "tool" or message.get("tool_calls") for message in chat)
