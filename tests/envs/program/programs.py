"""Programs that tests start, and the HTTP that they are asked in."""

import http.client
import json
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")

from gagpo.envs.pool.opening import open_pool

PATIENCE = 60.0
CHAT = "/v1/chat/completions"
TALK = """
import json, os, sys, time, urllib.request

def post(place, body, key=os.environ["OPENAI_API_KEY"], **headers):
    address = os.environ["ANTHROPIC_BASE_URL"] + place
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json", **headers}
    return json.load(urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers)))

def chat(*messages, **more):
    said = post("/v1/chat/completions", {"messages": list(messages), **more})
    return said["choices"][0]["message"]["content"]

def user(text):
    return {"role": "user", "content": text}

def answer(text):
    return {"role": "assistant", "content": text}

TASK = json.loads(os.environ.get("GAGPO_TASK", "null"))
"""


@contextmanager
def running(folder, source, rows=("a",), deadline=PATIENCE, **kwargs):
    """A pool for the program ``source``, which may use what ``TALK`` defines. rows: of its tasks, or their ids."""
    (folder / "program.py").write_text(TALK + source)
    rows = [{"split": "train", **(row if isinstance(row, dict) else {"id": row})} for row in rows]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kwargs = {"command": f"python {folder}/program.py", "tasks": str(folder / "tasks.jsonl"), **kwargs}
    with open_pool("gagpo/Program-v0", kwargs, step_timeout=deadline, reset_timeout=deadline) as pool:
        yield pool


def wait(pool):
    """The next event."""
    (event,) = pool.wait(PATIENCE)
    return event


def play(pool, *answers, task="a", slot=0):
    """The events of an episode in which the model says ``answers``, the last one again and again."""
    pool.reset(slot, task, 7)
    events, messages = [wait(pool)], list(answers)
    while events[-1].kind != "failed" and not (events[-1].terminated or events[-1].truncated):
        pool.step(slot, messages.pop(0) if len(messages) > 1 else messages[0])
        events.append(wait(pool))
    return events


def key_of(pool):
    """The key of the only episode under way."""
    (episode,) = pool._programs.values()
    return episode.token


def ask(pool, place=CHAT, body=None, key="", method="POST", raw=None):
    """Status and JSON of a request from outside of the program."""
    connection = http.client.HTTPConnection(urlsplit(pool._server.address).netloc, timeout=PATIENCE)
    try:
        content = json.dumps(body).encode() if raw is None else raw
        connection.request(
            method, place, content, {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"null")
    finally:
        connection.close()
