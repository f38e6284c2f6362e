"""Servers on this machine are reached directly, whatever proxy the environment variables name."""

import pytest

pytest.importorskip("websockets")

from gagpo.envs.remote.env import RemoteEnv
from gagpo.envs.remote.exchange import is_loopback
from gagpo.envs.remote.pool import open_pool
from gagpo.envs.remote.server import Server
from tests.envs.remote.session_server import serving

pytestmark = [pytest.mark.interop, pytest.mark.usefixtures("dead_proxy")]


def test_an_env_on_this_machine_is_played_past_the_proxy():
    with serving() as server:
        env = RemoteEnv(server.url, train=2, test=1)
        observation, _ = env.reset(options={"task": "train-0000001"})
        assert observation == "seed 1" and env.step("go")[0] == "seed 1 step 1 go"
        env.close()


def test_hundreds_of_sessions_too():
    with serving() as server, open_pool(server.url, {"train": 2}) as pool:
        pool.reset(0, "train-0000001", 1)
        (event,) = pool.wait(60)
        assert (event.kind, event.observation) == ("reset", "seed 1")


@pytest.mark.parametrize(
    ("url", "here"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://127.9.8.7", True),
        ("http://localhost:8000/v1", True),
        ("http://environments.localhost", True),
        ("https://[::1]:8000", True),
        ("http://localhost.example.org", False),
        ("http://10.0.0.7:8000", False),
        ("http://[broken", False),
    ],
)
def test_what_this_machine_is(url, here):
    assert is_loopback(url) == here
    assert Server(url).proxies != here
