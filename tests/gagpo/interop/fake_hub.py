"""A server with the calls of the Hugging Face hub that an upload makes."""

from __future__ import annotations

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOKEN = "hf_secretsecretsecret"


class FakeHub(BaseHTTPRequestHandler):
    """Stores what is committed; accepts :data:`TOKEN` alone. ``fails`` is the status of every commit, 0 for success."""

    files: dict[str, bytes]
    requests: list[str]
    fails = 0

    def do_HEAD(self):
        self.answer(200, {})

    def do_GET(self):
        if self.is_accepted():
            self.answer(200, {"siblings": [], "id": "me/model", "sha": "0" * 40})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self.chunked()
        path = self.path.partition("?")[0]
        self.server.requests.append(path)
        if not self.is_accepted():
            return
        if path == "/api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            name = json.loads(body)["name"]
            self.answer(200, {"url": f"http://{self.headers['Host']}/me/{name}"})
        elif path.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.answer(200, {"files": modes})
        elif path.endswith("/commit/main") and not self.server.fails:
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    self.server.files[row["value"]["path"]] = base64.b64decode(row["value"]["content"])
            self.answer(200, {"commitUrl": f"http://{self.headers['Host']}/me/model/commit/1", "commitOid": "1" * 40})
        else:
            self.answer(self.server.fails or 404, {"error": f"no {path} for {TOKEN}"})

    def is_accepted(self):
        token = self.headers.get("Authorization")
        if token != f"Bearer {TOKEN}":
            self.answer(401, {"error": f"Invalid token {token}"})
        return token == f"Bearer {TOKEN}"

    def chunked(self):
        body = b""
        while size := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@contextmanager
def serving():
    """The running server; its address is ``server.address``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeHub)
    server.files, server.requests, server.fails = {}, [], 0
    server.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
