"""Answers of an OpenEnv server that are incomplete or of the wrong shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("openenv", reason="the optional package openenv is not installed")

from gagpo.base.errors import InvalidArgument
from gagpo.envs.openenv.env import RemoteEnv
from gagpo.envs.openenv.errors import ServerFailed, ServerLost
from tests.envs.openenv.servers import AnswerServer
from tests.rejections import rejects

pytestmark = pytest.mark.interop
OBSERVATION = {"observation": {"text": "a door"}, "reward": None, "done": False}


@pytest.fixture(scope="module")
def answers() -> Iterator[AnswerServer]:
    server = AnswerServer()
    yield server
    server.kill()


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
def test_an_answer_without_an_observation_is_an_error_of_the_server(answers: AnswerServer, message: Any) -> None:
    answers.message = {"type": "observation", "data": OBSERVATION}
    with closing(RemoteEnv(answers.address)) as env:
        assert env.reset(seed=1)[0] == "a door"
        answers.message = message
        with rejects(ServerFailed, "read", where=answers.address) as caught:
            env.step("open")
        assert "\n" not in str(caught.value)
        with rejects(ServerFailed, "read", where=answers.address):
            env.reset(seed=1)


def test_an_empty_observation_is_an_answer(answers: AnswerServer) -> None:
    answers.message = {"type": "observation", "data": {**OBSERVATION, "observation": {}}}
    with closing(RemoteEnv(answers.address)) as env:
        assert env.reset(seed=1)[0] == "{}"


@pytest.mark.parametrize(
    ("metadata", "name"),
    [
        ({"state": 7}, "state must be a text"),
        ({"state": "x" * 2000}, "at most 1000 characters"),
        ({"success": "yes"}, "true or false"),
        ({"task": "other"}, "'other'"),
    ],
)
def test_metadata_of_the_wrong_shape_is_an_error(answers: AnswerServer, metadata: Any, name: str) -> None:
    answers.message = {"type": "observation", "data": {**OBSERVATION, "metadata": metadata}}
    with closing(RemoteEnv(answers.address)) as env, rejects(ServerFailed, name, where=answers.address):
        env.loop.run(env.session.reset({"seed": 1}, "door-1"), 10)


def test_a_step_needs_the_connection_of_its_reset() -> None:
    """OpenEnv's client would send it over a new connection, where no episode runs."""
    server = AnswerServer()
    server.message = {"type": "observation", "data": OBSERVATION}
    with closing(RemoteEnv(server.address)) as env:
        env.reset(seed=1)
        env.end_session()
        with rejects(ServerLost, "connection"):
            env.step("open")
    server.kill()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("http://a:1,", "http://HOST:PORT"),
        ("http://a:1,b:2", "got 'b:2'"),
        ("http://a:1,http://a:1/", "twice"),
    ],
)
def test_wrong_addresses_are_reported(url: str, name: str) -> None:
    with rejects(InvalidArgument, name):
        RemoteEnv(url)
