"""A stand-in for a container engine: the part of its documented HTTP API that is used, over a unix socket.

A "container" is a process of this machine, so that a world in it is a real server, and its death a real death. What it
was told at creation is kept for tests to look at.
"""

import contextlib
import json
import signal
import socketserver
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from gagpo.agents.engines.remote.transfer import free_port
from tests.served import in_thread

IMAGE = "worlds/counting:1"
ROOT = Path(__file__).parents[3]
HTTP = [sys.executable, "-P", "-m", "http.server", "--bind", "127.0.0.1", "{port}"]  # knows no /health, and says so
COUNTING = [sys.executable, "-m", "tests.envs.remote.session_server", "127.0.0.1", "{port}"]


class Container:
    """One process, made, not yet started. address: in the network "internal". limits: what it makes of those asked."""

    address, limits = "127.0.0.1", staticmethod(lambda asked: asked)

    def __init__(self, number, name, body, command):
        self.id, self.name, self.body = f"{number:064x}", name, body
        self.port = free_port("127.0.0.1")
        self.command = [word.format(port=self.port) for word in command]
        self.process, self.output = None, tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the container)

    def start(self):
        self.process = subprocess.Popen(
            self.command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self.output, stderr=self.output
        )

    @property
    def running(self):
        return self.process is not None and self.process.poll() is None

    def end(self, number=signal.SIGKILL):
        if self.running:
            self.process.send_signal(number)
            self.process.wait(10)

    def inspect(self):
        (port,) = self.body["HostConfig"]["PortBindings"]
        status = self.process.poll() if self.process else 0
        code = 0 if status is None else 128 - status if status < 0 else status
        ports = {port: [{"HostIp": "127.0.0.1", "HostPort": str(self.port)}]} if self.running else {}
        state = {"Running": self.running, "ExitCode": code, "OOMKilled": False}
        networks = {"internal": {"IPAddress": self.address, "IPPrefixLen": 24}}
        return {
            "Id": self.id,
            "Name": f"/{self.name}",
            "State": state,
            "HostConfig": self.limits(self.body["HostConfig"]),
            "NetworkSettings": {"Ports": ports, "Networks": networks},
        }

    def log(self):
        self.output.seek(0)
        return b"".join(
            bytes([1, 0, 0, 0]) + len(line).to_bytes(4, "big") + line for line in self.output.read().splitlines(True)
        )


class Engine:
    """What the server knows. command: what a container runs, with {port}. odd: instead of an answer, by its path.

    refused: called with method and path; gives an answer in place of doing what is asked, or nothing. spoiled: called
    with method, path and the body of the answer; gives bytes to send and seconds to wait in place of it, or nothing.
    container: makes one of a number, a name, a body and the command.
    """

    def __init__(self, socket, command):
        self.socket, self.command, self.containers = str(socket), command, {}
        self.created, self.lock, self.odd = [], threading.Lock(), {}
        self.refused = self.spoiled = lambda *_: None
        self.container, self.closing = Container, threading.Event()

    @property
    def running(self):
        return [one for one in self.containers.values() if one.running]

    def answer(self, method, path, query, body):
        """Status and JSON, bytes or nothing, as the documentation of the API has it."""
        for part, answer in self.odd.items():
            if part in path:
                return answer
        if (refusal := self.refused(method, path)) is not None:
            return refusal
        head, *rest = path.strip("/").split("/", 2)
        if head == "_ping":
            return 200, b"OK"
        if not head.startswith("v1."):
            return 404, {"message": "page not found"}
        parts = "/".join(rest).split("/")
        if parts[0] == "networks":
            return 200, {"Name": parts[1], "Internal": parts[1] == "internal"}
        if parts[0] == "images":
            name = "/".join(parts[1:-1])
            return (
                (200, {"Id": "sha256:" + "ab" * 32}) if name == IMAGE else (404, {"message": f"No such image: {name}"})
            )
        if parts == ["containers", "json"]:
            (wanted,) = json.loads(query["filters"][0])["label"]
            found = [one for one in self.containers.values() if wanted in one.body["Labels"]]
            return 200, [
                {
                    "Id": one.id,
                    "Names": [f"/{one.name}"],
                    "State": "running" if one.running else "exited",
                    "Labels": one.body["Labels"],
                }
                for one in found
            ]
        if parts == ["containers", "create"]:
            (name,) = query["name"]
            one = self.container(len(self.created) + 1, name, body, self.command)
            self.created.append(body)
            self.containers[one.id] = one
            return 201, {"Id": one.id, "Warnings": []}
        one = next((one for one in self.containers.values() if parts[1] in (one.id, one.name)), None)
        if one is None:
            return 404, {"message": f"No such container: {parts[1]}"}
        if method == "DELETE":
            one.end()
            del self.containers[one.id]
            return 204, None
        if parts[2] == "start":
            one.start()
            return 204, None
        return 200, one.inspect() if parts[2] == "json" else one.log()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def address_string(self):
        return "unix"

    def log_message(self, *words):
        pass

    def _carry(self):
        address = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        engine = self.server.engine
        with engine.lock:
            said = engine.answer(self.command, address.path, parse_qs(address.query), json.loads(raw) if raw else None)
        if callable(said):
            said = said()
        status, value = said
        data = b"" if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
        steps = engine.spoiled(self.command, address.path, data)
        if steps is not None:
            self._spoil(steps)
            return
        self.send_response(status)
        self.send_header("Api-Version", "1.41")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _spoil(self, steps):
        self.close_connection = True
        with contextlib.suppress(OSError):  # who asked has had enough
            for step in steps:
                if isinstance(step, bytes):
                    self.wfile.write(step)
                elif self.server.engine.closing.wait(step):
                    return

    do_GET = do_POST = do_DELETE = _carry


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # who asked has gone


@contextlib.contextmanager
def engine_server(folder, command=HTTP):
    """An engine at a socket in ``folder``; every process that is left at the end is killed."""
    socket = Path(folder) / "engine.sock"
    with _Server(str(socket), _Handler) as server:
        server.engine = engine = Engine(socket, command)
        try:
            with in_thread(server):
                try:
                    yield engine
                finally:
                    engine.closing.set()
        finally:
            for one in engine.containers.values():
                one.end()
