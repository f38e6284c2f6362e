"""Carries out one order in a sandbox of another machine. Sent there with the supervisor; only the standard library.

    python3 -I -S -B step.py ORDER ANSWER

Both are files of JSON, in which bytes are base64. A cloud's ``exec`` starts a new process for each order, so the state
of the shell lies in a file between two commands.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
STATE = os.path.join(FOLDER, "state.json")
# The last two lines of the supervisor's LOOP: what the shell is, after the command.
SCRIPT = """
builtin . "$1" 2>/dev/null; builtin cd -- "$2" 2>/dev/null
builtin eval "$3"
{ builtin printf '%s\\0%s\\0' "$?" "$PWD"; builtin umask -p; builtin declare -p; builtin declare -f; builtin alias
builtin shopt -p; builtin set +o; builtin printf '\\0\\0'; } 2>/dev/null > "$4"
"""


supervisor: Any = None  # the module, in the sandbox


def load_supervisor() -> Any:
    spec = importlib.util.spec_from_file_location("supervisor", os.path.join(FOLDER, "supervisor.py"))
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.EPISODE = ""  # paths of entries are those of this machine
    return module


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def entries() -> list[Any]:
    files = supervisor.read_tree("/app", b"app")
    if os.path.isdir("/logs"):
        files += supervisor.read_tree("/logs", b"logs")
    return [
        (text(path), entry_type, mode, text(content), changed) for path, entry_type, mode, content, changed in files
    ]


def tree(order: dict[str, Any]) -> dict[str, Any]:
    return {"entries": entries()}


def write(order: dict[str, Any]) -> dict[str, Any]:
    """Lay files over those of the image. ``replace``: they are all files of the working folder."""
    if order["replace"]:
        for name in os.listdir("/app"):
            path = os.path.join("/app", name)
            is_folder = os.path.isdir(path) and not os.path.islink(path)
            shutil.rmtree(path) if is_folder else os.unlink(path)
    for folder in ("/app", *order["folders"]):
        os.makedirs(folder, exist_ok=True)
    decode = base64.b64decode
    supervisor.write_tree(
        [(decode(p), entry_type, mode, decode(c), when) for p, entry_type, mode, c, when in order["entries"]]
    )
    with open(STATE, "w") as file:
        json.dump({"dump": order["dump"], "directory": order["directory"]}, file)
    return run({**order, "command": text(b":")})


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run a command in a shell with the variables and in the directory of the last one."""
    with open(STATE) as file:
        state = json.load(file)
    before = describe()
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        dump, after = os.path.join(folder, "dump"), os.path.join(folder, "after")
        with open(dump, "wb") as file:
            file.write(base64.b64decode(state["dump"]))
        command = base64.b64decode(order["command"])
        line = ["bash", "--norc", "--noprofile", "-c", SCRIPT, "bash", dump, state["directory"], command, after]
        outputs = [supervisor.Output("stdout"), supervisor.Output("stderr")]
        shell = subprocess.Popen(
            line,
            stdin=subprocess.DEVNULL,
            stdout=outputs[0].number,
            stderr=outputs[1].number,
            env=order["variables"],
            start_new_session=True,
        )
        stopped = ""
        try:
            status = shell.wait(order["seconds"])
        except subprocess.TimeoutExpired:
            with suppress(OSError):
                os.killpg(shell.pid, 9)
            shell.wait()
            status, stopped = 124, f"it took more than {order['seconds']:g} s"
        answer = b""
        with suppress(OSError), open(after, "rb") as file:
            answer = file.read()
        restarted = not answer.endswith(b"\0\0")
        if not restarted:
            code, directory, variables = answer[:-2].split(b"\0", 2)
            status = int(code)
            state = {"dump": text(supervisor.stable_variables(variables)), "directory": os.fsdecode(directory)}
        elif not stopped:
            state = {**state, "dump": ""}
            status = status if status >= 0 else 128 - status
    with open(STATE, "w") as file:
        json.dump(state, file)
    now = describe()
    changes = [b"- " + path for path in before if path not in now]
    changes += [(b"~ " if path in before else b"+ ") + path for path in now if before.get(path) != now[path]]
    key = repr((sorted(now.items()), state)).encode()
    streams = [[text(head), text(tail), size] for head, tail, size in (out.take(order["limit"]) for out in outputs)]
    return {
        "status": status,
        "streams": streams,
        "state": supervisor.hashlib.sha256(key).hexdigest()[:24],
        "changes": [change.decode("utf-8", "backslashreplace") for change in changes[:50]],
        "restarted": restarted,
        "stopped": stopped,
        **({"dump": "", "directory": "/app"} | state),
    }


def describe() -> dict[bytes, tuple[str, int, bytes]]:
    """Contents, modes and links of the working folder, without times."""
    digest = supervisor.hashlib.sha256
    descriptions = {}
    for path, entry_type, mode, content, _ in supervisor.read_tree("/app", b"app"):
        content = supervisor.content_of_index(content) if path.endswith(b"/.git/index") else content
        descriptions[path] = (entry_type, mode, digest(content).digest())
    return descriptions


def main() -> None:
    with open(sys.argv[1]) as file:
        order = json.load(file)
    orders: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"write": write, "run": run, "tree": tree}
    answer: dict[str, Any]
    try:
        answer = {"answer": orders[order["name"]](order)}
    except (supervisor.Failed, OSError) as error:
        answer = {"error": str(error)}
    with open(sys.argv[2], "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    supervisor = load_supervisor()
    main()
