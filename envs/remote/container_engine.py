"""The engine that runs containers on this machine, Docker's or Podman's, asked over its HTTP API at a unix socket.

Both speak the API that Docker documents. No client program is needed for it, and nothing is read from what one prints.
An engine on another machine is refused: the ports of its containers would be open on that machine's loopback alone.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gagpo.base.errors import GagpoError, first_line
from gagpo.base.tables import ascii_only
from gagpo.envs.remote.exchange import ExchangeFailed, OversizedReply, Reply, exchange, open_http
from gagpo.envs.remote.protocol import Json, as_list, as_object

VARIABLES = ("DOCKER_HOST", "CONTAINER_HOST")
"""Environment variables that name a socket: Docker's, then Podman's."""

PING_SECONDS = 10.0  # until it says what it is
ANSWER_SECONDS = 60.0  # for one request to the engine
MOST = 16 << 20  # bytes of an answer
LOG_LINES = 20  # of a container that died, for people
_FRAME = 8  # bytes before each piece of a log: stream, three zeros, length


class EngineFailed(GagpoError):
    """The engine cannot be asked, or refuses. status: of its answer; 0 where there is none."""

    def __init__(self, message: str, status: int = 0):
        super().__init__(message)
        self.status = status


class ContainerEngine:
    """An engine at ``socket``; raises :class:`EngineFailed` from the start where none answers there.

    A client may be used from any thread.
    """

    def __init__(self, socket: str):
        self.socket = socket
        self._prefix = ""
        reply = self._exchange("GET", "/_ping", None, PING_SECONDS)
        # The version is the engine's own: old ones know no newer, and new ones have dropped the oldest.
        version = reply.headers.get("api-version", "")
        if reply.body.strip() != b"OK" or not version.replace(".", "").isdecimal():
            raise EngineFailed(f"{socket} is no container engine: it answers {ascii_only(repr(reply.body[:40]))}")
        self._prefix = f"/v{version}"

    @property
    def name(self) -> str:
        """What it is and where, for people."""
        return f"the container engine at {self.socket}"

    def image(self, name: str) -> Json:
        """What the engine knows of an image; EngineFailed with status 404 where it has none of that name."""
        return self._object("GET", f"/images/{quote(name, safe='/:@')}/json")

    def network(self, name: str) -> Json:
        return self._object("GET", f"/networks/{quote(name, safe='')}")

    def create(self, name: str, settings: Json) -> None:
        """Make a container called ``name``, which does not run yet."""
        self._object("POST", f"/containers/create?{urlencode({'name': name})}", settings)

    def start(self, name: str) -> None:
        self._ask("POST", f"/containers/{quote(name, safe='')}/start")

    def inspect(self, name: str) -> Json:
        return self._object("GET", f"/containers/{quote(name, safe='')}/json")

    def logs(self, name: str) -> list[str]:
        """The last lines that it wrote, printable; none where there is no such container any more."""
        query = urlencode({"stdout": 1, "stderr": 1, "tail": LOG_LINES})
        try:
            raw = self._ask("GET", f"/containers/{quote(name, safe='')}/logs?{query}")
        except EngineFailed:
            return []
        return [ascii_only(line.rstrip()) for line in _unframed(raw).decode(errors="replace").splitlines()]

    def remove(self, name: str) -> None:
        """End a container at once and remove it with its anonymous volumes; one that is gone already is fine."""
        try:
            self._ask("DELETE", f"/containers/{quote(name, safe='')}?{urlencode({'force': 'true', 'v': 'true'})}")
        except EngineFailed as error:
            if error.status not in (404, 409):  # 409: somebody else is removing it
                raise

    def list(self, label: str) -> list[Json]:
        """All containers with ``label``, those that have ended included."""
        query = urlencode({"all": "true", "filters": json.dumps({"label": [label]})})
        return [as_object(one) for one in as_list(self._json("GET", f"/containers/json?{query}"))]

    def _object(self, method: str, path: str, body: Json | None = None) -> Json:
        return as_object(self._json(method, path, body))

    def _json(self, method: str, path: str, body: Json | None = None) -> Any:
        raw = self._ask(method, path, body)
        try:
            return json.loads(raw)
        except (ValueError, RecursionError):
            raise EngineFailed(f"{self.name}: {path.partition('?')[0]}: the answer is no JSON") from None

    def _ask(self, method: str, path: str, body: Json | None = None) -> bytes:
        return self._exchange(method, self._prefix + path, body, ANSWER_SECONDS).body

    def _exchange(self, method: str, path: str, body: Json | None, seconds: float) -> Reply:
        """An answer, within a deadline and a length; EngineFailed where it is an error."""
        data = None if body is None else json.dumps(body).encode()

        async def ask() -> Reply:
            async with open_http(proxies=False, socket=self.socket) as http:
                return await exchange(http, method, f"http://engine{path}", data, deadline=seconds, most=MOST)

        try:
            reply = asyncio.run(ask())
        except OversizedReply:
            raise EngineFailed(f"{self.name}: {path.partition('?')[0]}: the answer does not end") from None
        except ExchangeFailed as error:
            raise EngineFailed(f"{self.name} does not answer: {ascii_only(first_line(error))}") from None
        if reply.status >= 400:
            raise EngineFailed(f"{self.name}: {_reason(reply.body)}", reply.status)
        return reply


def find_engine(variables: Mapping[str, str] | None = None) -> ContainerEngine:
    """The engine that ``DOCKER_HOST`` or ``CONTAINER_HOST`` names, else the first at the usual sockets.

    A user's own (rootless) engine comes before the system's. Raises :class:`EngineFailed`, in one line that says what
    was looked for and what to do.
    """
    variables = os.environ if variables is None else variables
    for name in VARIABLES:
        if address := variables.get(name):
            scheme, _, socket = address.partition("://")
            if scheme != "unix" or not socket.startswith("/"):
                raise EngineFailed(
                    f"{name}={ascii_only(address)[:100]}: only an engine of this machine can run worlds: set it to "
                    "unix:///PATH/OF/ITS.sock, or start `gagpo serve` on that machine and name its http:// address"
                )
            return ContainerEngine(socket)
    looked: list[str] = []
    for socket in usual_sockets(variables):
        try:
            if stat.S_ISSOCK(os.stat(socket).st_mode):
                return ContainerEngine(socket)
            looked.append(f"{socket} (is no socket)")
        except FileNotFoundError:
            looked.append(f"{socket} (is not there)")
        except OSError as error:
            looked.append(f"{socket} ({error.strerror})")
        except EngineFailed as error:
            looked.append(f"{socket} ({first_line(error).rpartition(': ')[2]})")
    raise EngineFailed(
        f"a world in a container needs Docker or Podman, and neither answers; looked for {', '.join(looked)}. Start "
        "one (`systemctl --user start podman.socket`, or `systemctl start docker`), or name its socket in DOCKER_HOST"
    )


def usual_sockets(variables: Mapping[str, str]) -> list[str]:
    """Where engines listen: those of this user first."""
    own = variables.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    home = variables.get("HOME") or str(Path.home())
    return [
        f"{own}/podman/podman.sock",
        f"{own}/docker.sock",
        f"{home}/.docker/run/docker.sock",
        "/var/run/docker.sock",
        "/run/podman/podman.sock",
    ]


def _reason(body: bytes) -> str:
    """What an answer with an error says, on one line."""
    try:
        said = as_object(json.loads(body)).get("message") or as_object(json.loads(body)).get("cause")
    except (ValueError, RecursionError):
        said = None
    text = str(said) if said else body[:300].decode(errors="replace")
    return ascii_only(" ".join(text.split())[:300]) or "it gives no reason"


def _unframed(raw: bytes) -> bytes:
    """The bytes of a log without the frames in which an engine sends the two streams of a process."""
    whole, place = bytearray(), 0
    while place + _FRAME <= len(raw) and raw[place] in (0, 1, 2) and raw[place + 1 : place + 4] == b"\0\0\0":
        length = int.from_bytes(raw[place + 4 : place + _FRAME], "big")
        whole += raw[place + _FRAME : place + _FRAME + length]
        place += _FRAME + length
    return bytes(whole) if place else raw
