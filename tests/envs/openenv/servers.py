"""OpenEnv servers in threads of the test: the protocol's messages, without the package's own server."""

from __future__ import annotations

import json
import threading
from typing import Any

from websockets.sync.server import Server, ServerConnection, serve


class AnswerServer:
    """A server that sends ``message`` for every request."""

    message: Any = None

    def __init__(self) -> None:
        self._server: Server = serve(self.answer, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._connections: set[ServerConnection] = set()
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def answer(self, connection: ServerConnection) -> None:
        self._connections.add(connection)
        for text in connection:
            request = json.loads(text)
            if request["type"] != "close":
                connection.send(json.dumps(self.reply(request)))

    def reply(self, request: dict[str, Any]) -> Any:
        return self.message

    def kill(self) -> None:
        """End the server and cut its connections, as the end of its process does."""
        self._server.shutdown()
        for connection in self._connections:
            connection.socket.close()
        self._thread.join(10)


class CountServer(AnswerServer):
    """Episodes of ``length`` steps; counts its resets. full: it admits no session."""

    def __init__(self, length: int = 4) -> None:
        self.length = length
        self.resets = 0
        self.full = False
        super().__init__()

    def reply(self, request: dict[str, Any]) -> Any:
        if self.full:
            return {"type": "error", "data": {"message": "too many sessions", "code": "CAPACITY_REACHED"}}
        if request["type"] == "reset":
            self.resets += 1
            return _observation(f"seed {request['data']['seed']}", 0.0, False)
        step = int(request["data"]["action"])
        return _observation(f"step {step}", float(step == self.length), step == self.length)


def _observation(text: str, reward: float, done: bool) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": {"text": text}, "reward": reward, "done": done}}
