"""Answers of an OpenEnv server that are incomplete or of the wrong shape."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("openenv", reason="the optional package openenv is not installed")

from websockets.sync.server import Server, ServerConnection, serve

from gagpo.envs.openenv import ServerFailed, Session

pytestmark = pytest.mark.interop
OBSERVATION = {"observation": {"text": "a door"}, "reward": None, "done": False}


class Answers:
    """A server that sends ``message`` for every request."""

    message: Any = None
    address: str = ""

    def answer(self, connection: ServerConnection) -> None:
        for _ in connection:
            connection.send(json.dumps(self.message))


@pytest.fixture(scope="module")
def answers() -> Iterator[Answers]:
    answers = Answers()
    server: Server = serve(answers.answer, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    answers.address = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    yield answers
    server.shutdown()
    thread.join(10)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "observation"},
        {"type": "observation", "data": None},
        {"type": "observation", "data": []},
        {"type": "observation", "data": {}},
        {"type": "observation", "data": {"observation": None}},
        {"data": {"reward": 1.0, "done": True}},
        [],
        "observation",
        None,
    ],
)
def test_an_answer_without_an_observation_is_an_error_of_the_server(answers: Answers, message: Any) -> None:
    answers.message = {"type": "observation", "data": OBSERVATION}
    with closing(Session(answers.address)) as env:
        assert env.reset(seed=1)[0] == "a door"
        answers.message = message
        with pytest.raises(ServerFailed, match=r"127\.0\.0\.1:\d+ sent a message that cannot be read: ") as caught:
            env.step("open")
        assert "\n" not in str(caught.value)
        with pytest.raises(ServerFailed, match="cannot be read"):
            env.reset(seed=1)


def test_an_empty_observation_is_an_answer(answers: Answers) -> None:
    answers.message = {"type": "observation", "data": {**OBSERVATION, "observation": {}}}
    with closing(Session(answers.address)) as env:
        assert env.reset(seed=1)[0] == "{}"
