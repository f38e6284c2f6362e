"""The shop as a web site for people and browsers: plain pages without scripts, served by waitress.

A page's address contains its whole state, so the server has no sessions. An address that no clicks lead to is answered
with "no such page". One that is only spelled differently is redirected to the page's own address.
"""

from __future__ import annotations

import inspect
import logging
import random
import socket
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gagpo.base.errors import InvalidArgument
from gagpo.base.origin import LOOPBACK, SAFETY_HEADERS, host_name
from gagpo.envs.tasks import UnknownTask
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.goals import KINDS
from gagpo.envs.webshop.pages import INDEX, NoSuchPage, Shop
from gagpo.envs.webshop.render import ROOT, address, front_page, html, problem_page, state_at
from gagpo.envs.webshop.web.style import STYLE

if TYPE_CHECKING:
    from flask import Flask
    from flask.typing import ResponseReturnValue

LARGEST_REQUEST = 64 << 10
SPLITS = ("train", "validation", "test")

_HEADERS = {
    **SAFETY_HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-cache",
}


def make_app(shop: Shop, trusted_hosts: tuple[str, ...] | None = LOOPBACK) -> Flask:
    """The Flask application of ``shop``. Rejects host names outside ``trusted_hosts`` (None: accepts any)."""
    from flask import Flask, Response, abort, redirect, request
    from werkzeug.exceptions import HTTPException

    app = Flask("webshop", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = LARGEST_REQUEST
    chance = random.SystemRandom()

    @app.before_request
    def known_by_name() -> None:
        # Prevents DNS rebinding. Flask's own TRUSTED_HOSTS does not support IPv6 addresses.
        if trusted_hosts and host_name(request.host) not in trusted_hosts:
            abort(400)

    @app.get("/")
    def front() -> str:
        sizes = {(kind, split): len(shop.store.tasks(kind, split)) for kind in KINDS for split in SPLITS}
        return front_page(sizes, len(shop.store))

    @app.get("/start")
    def start() -> ResponseReturnValue:
        kind, split = request.args.get("goals", KINDS[0]), request.args.get("split", SPLITS[0])
        if kind not in KINDS or split not in SPLITS or not len(shop.store.tasks(kind, split)):
            raise NoSuchPage("there are no such tasks")
        task = chance.choice(shop.store.tasks(kind, split).ids)
        return redirect(address(shop, shop.start(task)), 303)

    @app.get(f"{ROOT}/<task>", defaults={"kind": INDEX})
    @app.get(f"{ROOT}/<task>/<kind>")
    def page(task: str, kind: str) -> ResponseReturnValue:
        asked = request.query_string.decode("ascii", "replace")
        state = state_at(shop, task, kind, asked)
        own = address(shop, state)
        if own != f"{request.path}{'?' if asked else ''}{asked}":
            return redirect(own, 303)
        return html(shop, shop.page(state))

    @app.get("/style.css")
    def style() -> Response:
        return Response(STYLE, mimetype="text/css", headers={"Cache-Control": "max-age=3600"})

    @app.errorhandler(NoSuchPage)
    @app.errorhandler(UnknownTask)
    def unreachable(error: Exception) -> tuple[str, int]:
        return problem_page("No such page", "The address was changed, is out of date, or names an unknown task."), 404

    @app.errorhandler(HTTPException)
    def refused(error: HTTPException) -> tuple[str, int]:
        return problem_page(error.name, ""), error.code or 500

    @app.after_request
    def protect(response: Response) -> Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    return app


class Site:
    """The site, running in a thread of this process. Use it as a context manager, or call :meth:`close`.

    host: by default, only this machine can connect.
    port: 0 chooses a free port.

    Raises:
        OSError: the address cannot be bound.
    """

    def __init__(self, shop: Shop, host: str = "127.0.0.1", port: int = 0, threads: int = 8):
        from gagpo.envs.webshop.web.server import ShopServer

        # Queued requests and full connections are normal on a busy site; warnings would fill the terminal.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        logging.getLogger("waitress").setLevel(logging.ERROR)
        app = make_app(shop, LOOPBACK if host in LOOPBACK else None)
        try:
            # A name may have several addresses; one is served, IPv4 first.
            host = str(min(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))[4][0])
            self._server = ShopServer(
                app,
                host=host,
                port=port,
                threads=threads,
                ident="",
                max_request_header_size=LARGEST_REQUEST,
                max_request_body_size=LARGEST_REQUEST,
            )
        except OSError as error:
            reason = error.strerror or error
            raise OSError(f"cannot serve at {host} port {port}: {reason}; choose another port") from None
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self._server.effective_port}"
        self._thread = threading.Thread(target=self._server.run, name="webshop-site", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Serve until the process is interrupted."""
        while self._thread.is_alive():
            self._thread.join(timeout=1.0)

    def close(self) -> None:
        """Stop serving; safe to call twice."""
        if self._thread.is_alive():
            self._server.trigger.pull_trigger(self._shut)
            self._thread.join(timeout=10.0)

    def _shut(self) -> None:
        # Runs in the server's thread, the only one that may touch its sockets; the loop ends without sockets.
        for channel in list(self._server.active_channels.values()):
            channel.handle_close()
        self._server.task_dispatcher.shutdown(timeout=1)
        self._server.close()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def serve_pages(env_id: str, kwargs: Mapping[str, object], host: str = "127.0.0.1", port: int = 8000) -> None:
    """Serve the shop of ``env_id`` for people, print its address, and run until interrupted.

    Raises:
        InvalidArgument: another environment than the WebShop, or an unknown argument.
    """
    if env_id.rpartition(":")[2] != "gagpo/WebShop-v0":
        raise InvalidArgument(f"--browser requires gagpo/WebShop-v0, got {env_id!r}")
    known = inspect.signature(WebShopEnv).parameters
    if unknown := sorted(set(kwargs) - set(known)):
        raise InvalidArgument(f"{env_id} has no argument {unknown[0]!r}; choose from {', '.join(known)}")
    shop = WebShopEnv(**kwargs).shop  # type: ignore[arg-type]
    with Site(shop, host, port) as site:
        print(f"{len(shop.store)} products. The shop is open at {site.address}/ (Ctrl-C closes it).", flush=True)
        try:
            site.wait()
        except KeyboardInterrupt:
            print("Closed.")
