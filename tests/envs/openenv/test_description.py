"""What a server says about its environment is checked: it is another machine's word."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gagpo.envs.openenv.description import ServerDescription, addresses, describe, list_tasks
from gagpo.envs.openenv.errors import ServerFailed, ServerLost
from tests.rejections import rejects

SPLITS = [{"name": "train", "type": "train"}, {"name": "hard", "type": "validation"}]


@pytest.fixture
def pages() -> Iterator[dict[str, Any]]:
    """The answers of a server by path; ``url`` is its address."""
    answers: dict[str, Any] = {"/list_environments": ["door"], "/door/splits": SPLITS}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers.get(self.path)).encode()
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200 if self.path in answers else 404)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    answers["url"] = f"http://127.0.0.1:{server.server_address[1]}"
    yield answers
    server.shutdown()
    server.server_close()


def described(pages: dict[str, Any]) -> ServerDescription:
    return asyncio.run(describe(pages["url"]))


def test_a_server_with_a_task_api_has_splits_and_tasks(pages):
    assert described(pages) == ServerDescription("door", ("train", "hard"))
    pages["/door/tasks"] = {"tasks": [{"id": "b", "type": "open", "digest": "1", "level": 2}, {"question": 3}, 7]}
    tasks = asyncio.run(list_tasks(pages["url"], "door", "hard"))
    assert tasks.ids == ["b", "hard-0000001", "hard-0000002"]
    assert [task.source for task in tasks] == ["0", "1", "2"] and tasks["b"].type == "open" and tasks["b"].level == 2
    assert tasks["hard-0000001"].digest != tasks["hard-0000002"].digest


def test_a_server_without_a_task_api_has_none(pages):
    del pages["/list_environments"]
    assert described(pages) == ServerDescription()


def test_ours_sends_instructions_and_tools(pages):
    tool = {"name": "open", "description": "Open it.", "parameters": {"type": "object"}}
    pages["/gagpo"] = {"instructions": "Open the door.", "multiline": True, "tools": [tool]}
    about = described(pages)
    assert about.sends_states and about.instructions == "Open the door." and about.multiline
    assert [item.name for item in about.tools] == ["open"]


@pytest.mark.parametrize(
    ("path", "answer", "key", "names"),
    [
        ("/gagpo", {"instructions": 3}, "instructions", ()),
        ("/gagpo", {"tools": [{"name": "two words", "description": "", "parameters": {"type": "object"}}]}, "name", ()),
        ("/gagpo", {"tools": {}}, "tools", ("list",)),
        ("/door/splits", [{"name": ""}], None, ("split",)),
        ("/door/splits", ["a", "a"], "splits", ()),
    ],
)
def test_invalid_descriptions_name_the_server_and_the_field(pages, path, answer, key, names):
    pages[path] = answer
    with rejects(ServerFailed, *names, key=key) as caught:
        described(pages)
    assert pages["url"] in str(caught.value)


@pytest.mark.parametrize(
    "tasks", [None, 3, {}, [{"id": "a"}, {"id": "a"}], [{"level": "hard"}], [{"digest": 3}], [{"type": ["x"]}]]
)
def test_invalid_lists_of_tasks_are_errors_of_the_server(pages, tasks):
    pages["/door/tasks"] = {"tasks": tasks}
    with pytest.raises(ServerFailed):
        asyncio.run(list_tasks(pages["url"], "door", "train"))


def test_a_server_that_is_not_there_is_lost():
    with rejects(ServerLost, where="http://127.0.0.1:9/gagpo"):
        asyncio.run(describe("http://127.0.0.1:9"))


def test_addresses_are_separated_by_commas():
    assert addresses("http://a:1/, https://b") == ["http://a:1", "https://b"]
