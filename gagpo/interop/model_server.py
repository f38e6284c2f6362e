"""An OpenAI-compatible server of a trained model: the gateway of programs, without episodes."""

from __future__ import annotations

import asyncio
import secrets

from starlette.requests import Request

from gagpo.base.errors import InvalidArgument
from gagpo.base.origin import LOOPBACK
from gagpo.envs.gateway.messages import ChatRequest, Completion, GatewayError
from gagpo.envs.gateway.server import GatewayClient, GatewayServer, key_of
from gagpo.interop.chat_model import ChatModel


class ModelClient:
    """Every client of the server; they share the limits of one key."""

    token = "client"

    def __init__(self, model: ChatModel):
        self._model = model

    def require_running(self) -> None:
        """A model answers until the server ends."""

    def ask(self, request: ChatRequest, state_key: str) -> asyncio.Future[Completion]:
        """The answer; cancelling it withdraws the request."""
        return asyncio.wrap_future(self._model.ask(request))

    def note_rejection(self, reason: str) -> None:
        """Nothing is counted."""


class ModelServer(GatewayServer):
    """Answers chat requests, responses and messages with ``model``.

    host: where it listens.
    port: 0 takes a free one.
    key: that clients must send; '' accepts any.

    Raises: InvalidArgument for an address that other machines reach, without a key.
    """

    def __init__(self, model: ChatModel, host: str = "127.0.0.1", port: int = 0, key: str = ""):
        if host not in LOOPBACK and not key:
            raise InvalidArgument(
                f"--host {host} accepts requests of other machines", key="--api-key", advice="set a key with --api-key"
            )
        super().__init__(host, port, model.name)
        self._key = key
        self._client_of_model = ModelClient(model)

    def _client(self, request: Request) -> GatewayClient:
        # In constant time, or the answer's delay would tell how much of the key is right.
        if self._key and not secrets.compare_digest(key_of(request).encode(), self._key.encode()):
            raise GatewayError(401, "the key is wrong: send that of --api-key")
        return self._client_of_model
