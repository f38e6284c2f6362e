"""A server of sessions with scripted answers, and the HTTP answers of one that lists no tasks."""

import json
import threading
from contextlib import contextmanager

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve


def observation(text, reward=None, done=False, **metadata):
    return json.dumps(
        {
            "type": "observation",
            "data": {"observation": {"text": text}, "reward": reward, "done": done, "metadata": metadata},
        }
    )


def counting(message, state):
    """An environment of three steps: the state is the number of steps; the third one succeeds."""
    if message["type"] == "reset":
        state.update(seed=message["data"]["seed"], steps=0)
        return observation(f"seed {state['seed']}")
    state["steps"] += 1
    done = state["steps"] == 3
    return observation(f"seed {state['seed']} step {state['steps']} {message['data']['action']}", float(done), done)


@contextmanager
def serving(answer=counting, port=0, most=1000, redirect=""):
    """``answer(message, state)`` gives what is sent: a text, several parts of one, or None for nothing at all."""
    opened = []

    def session(connection):
        opened.append(connection)
        state = {}
        if len([one for one in opened if one.state.name == "OPEN"]) > most:
            connection.send(json.dumps({"type": "error", "data": {"message": "full", "code": "CAPACITY_REACHED"}}))
            return
        try:
            for raw in connection:
                said = answer(json.loads(raw), state)
                if said is not None:
                    connection.send(said)
        except ConnectionClosed:
            pass

    def http(connection, request):
        if request.path == "/ws":
            if not redirect:
                return None
            response = connection.respond(302, "")
            response.headers["location"] = redirect
            return response
        if request.path == "/schema":
            return connection.respond(200, json.dumps({"action": {"required": ["action"]}}))
        if request.path == "/metadata":
            return connection.respond(200, json.dumps({"name": "counting", "description": "Count to three."}))
        return connection.respond(404, "{}")

    with serve(session, "127.0.0.1", port, process_request=http, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        server.opened = opened
        server.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        yield server
        for connection in opened:
            connection.close()
