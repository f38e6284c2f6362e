"""``gagpo serve``: run an OpenEnv server of an environment."""

from __future__ import annotations

import socket

from gagpo.base.errors import MissingPackage
from gagpo.base.origin import LOOPBACK
from gagpo.interop.games import Kwargs


def serve(
    env_id: str,
    kwargs: Kwargs | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 2,
    max_sessions: int = 64,
    admissible: bool = False,
    session_seconds: float = 3600.0,
    idle_seconds: float = 600.0,
    max_message: int = 1 << 20,
    step_deadline: float = 60.0,
) -> None:
    """Serve ``env_id`` until interrupted; print the address on standard output once it accepts connections.

    A client that disappears is noticed within 40 seconds. Requests from other sites' pages are rejected; at a loopback
    address, so are requests for any other host name.

    port: 0 takes a free one.
    max_message: largest message in bytes.
    """
    try:
        import uvicorn

        from gagpo.interop.openenv import make_app, open_env
    except ImportError as error:
        raise MissingPackage(f"gagpo serve needs OpenEnv ({error}); install the extra openenv") from None
    with socket.create_server((host, port)) as listener:
        env = open_env(
            env_id,
            kwargs,
            workers=workers,
            admissible=admissible,
            session_seconds=session_seconds,
            step_deadline=step_deadline,
        )
        try:
            app = make_app(
                env,
                max_sessions=max_sessions,
                idle_seconds=idle_seconds,
                max_message=max_message,
                hosts=LOOPBACK if host in LOOPBACK else None,
            )
            config = uvicorn.Config(
                app,
                log_level="warning",
                ws_max_size=max_message,
                ws_ping_interval=20,
                ws_ping_timeout=20,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
            )
            print(f"serving {env_id} at http://{host}:{listener.getsockname()[1]}", flush=True)
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            env.pool.close()
