"""The HTTP protocols that the gateway speaks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from gagpo.envs.gateway import anthropic, openai, responses
from gagpo.envs.gateway.messages import ChatRequest, Completion, Json


class ChatProtocol(Protocol):
    """What a module does for its protocol: translate requests from it, and answers into it."""

    def read(self, body: Json) -> ChatRequest:
        """The request in the JSON of a client. Raises: GatewayError."""

    def answer(self, request: ChatRequest, completions: Sequence[Completion], name: str) -> Json:
        """The JSON of an answer. name: identifies it."""

    def stream(self, request: ChatRequest, completions: Sequence[Completion], name: str) -> str:
        """The answer as server-sent events, all at once."""


PROTOCOLS: Mapping[str, ChatProtocol] = {
    "chat/completions": openai,
    "responses": responses,
    "messages": anthropic,
}
"""Protocols by their path under ``/v1``."""
