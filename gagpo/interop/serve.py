"""``gagpo serve``: run an OpenEnv server of an environment, or write the folder from which one is deployed."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import yaml

from gagpo.envs.errors import InvalidArgument, MissingPackage
from gagpo.envs.tables import Table


def serve(
    env_id: str,
    kwargs: Mapping[str, Any] | None = None,
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
    """Serve ``env_id`` until interrupted; port 0 takes a free one. Says the address on standard output once it is up.

    max_message: bytes of one message. A client that vanishes without a word is noticed within 40 seconds.
    """
    import socket

    try:
        import uvicorn

        from gagpo.interop.openenv import make_app, open_world
    except ImportError as error:
        raise MissingPackage(f"gagpo serve needs OpenEnv ({error}); install the extra openenv") from None
    with socket.create_server((host, port)) as listener:
        world = open_world(
            env_id,
            kwargs,
            workers=workers,
            admissible=admissible,
            session_seconds=session_seconds,
            step_deadline=step_deadline,
        )
        try:
            app = make_app(world, max_sessions=max_sessions, idle_seconds=idle_seconds, max_message=max_message)
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
            world.hall.close()


def write_package(env_id: str, kwargs: Mapping[str, Any] | None, folder: Path) -> list[Path]:
    """Write what ``openenv validate``, ``docker build`` and ``openenv push`` take; returns the files.

    An environment of the user's own (``module:Name-v0``) whose module is one file is copied beside them. Raises
    InvalidArgument when ``folder`` holds anything.
    """
    from gagpo.interop.openenv import open_world, short_name

    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgument(f"{folder} is not empty: choose a new folder")
    world = open_world(env_id, kwargs, workers=0)
    world.hall.close()
    name = short_name(env_id)
    texts = {
        "openenv.yaml": _manifest(name, {split: len(tasks) for split, tasks in world.tasks.items()}),
        "pyproject.toml": _project(name),
        "Dockerfile": _DOCKERFILE,
        "README.md": _readme(name, env_id, {split: tasks.hash for split, tasks in world.tasks.items()}),
        "__init__.py": f'"""OpenEnv package of {env_id}."""\n',
        "server/__init__.py": f'"""The server of {env_id}."""\n',
        "server/app.py": _app(env_id, dict(kwargs or {})),
        "wheels/README": "Put the wheel of gagpo here: pip wheel --no-deps -w wheels PATH_TO_GAGPO\n",
    }
    written = []
    for path, text in texts.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        written.append(place)
    module, colon, _ = env_id.partition(":")
    spec = importlib.util.find_spec(module) if colon and not module.startswith("gagpo") else None
    if spec is not None and spec.origin and not spec.submodule_search_locations:
        written.append(Path(shutil.copy(spec.origin, folder / "server" / Path(spec.origin).name)))
    return written


def _manifest(name: str, counts: dict[str, int]) -> str:
    declared = {
        "reward": {"range": [-1.0, 1.0], "oracle_tolerance": 0.0, "floor_margin": 0.1},
        "resources": {"cpu": 1.0, "memory_mb": 2048, "disk_mb": 2048, "episode_timeout_s": 600.0},
        "capabilities": {
            "verifier": {"kind": "reward_channel"},
            "task_api": True,
            "declared_task_count": counts,
        },
        "types": {"tags": ["text-agents"]},
    }
    head = {"spec_version": 1, "name": name, "version": "0.1.0", "type": "space", "runtime": "fastapi"}
    return yaml.safe_dump({**head, "app": "server.app:app", "port": 8000, "validation": declared}, sort_keys=False)


def _project(name: str) -> str:
    return dedent(f"""\
        [build-system]
        requires = ["setuptools>=77"]
        build-backend = "setuptools.build_meta"

        [project]
        name = "openenv-{name}"
        version = "0.1.0"
        description = "{name} as an OpenEnv server"
        requires-python = ">=3.11"
        dependencies = ["openenv>=0.10,<0.11", "gagpo"]

        [project.scripts]
        server = "{name}.server.app:main"

        [tool.setuptools]
        packages = ["{name}", "{name}.server"]
        package-dir = {{ "{name}" = ".", "{name}.server" = "server" }}
        """)


def _app(env_id: str, kwargs: dict[str, Any]) -> str:
    return dedent(f'''\
        """The application: `uvicorn server.app:app`, or `python -m server.app`."""

        import sys
        from pathlib import Path

        sys.path.insert(0, str(Path(__file__).parent))  # an environment of one file lies beside this one

        from gagpo.interop.openenv import make_app, open_world

        app = make_app(open_world({env_id!r}, {kwargs!r}))


        def main() -> None:
            import uvicorn

            uvicorn.run(app, host="0.0.0.0", port=8000, ws_max_size=1 << 20)


        if __name__ == "__main__":
            main()
        ''')


_DOCKERFILE = """\
FROM python:3.11-slim
WORKDIR /app
# The CPU build of torch is enough: no environment uses it.
ARG TORCH_INDEX_URL=""
COPY wheels /wheels
RUN pip install --no-cache-dir ${TORCH_INDEX_URL:+--index-url $TORCH_INDEX_URL} "torch==2.13.0" \\
 && pip install --no-cache-dir /wheels/*.whl "openenv>=0.10,<0.11"
COPY . /app
ENV GAGPO_DATA=/data
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=3s --start-period=60s \\
  CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health', timeout=2)"
CMD ["python", "-m", "uvicorn", "server.app:app", "--host", "0.0.0.0", "--port", "8000", "--ws-max-size", "1048576"]
"""


def _readme(name: str, env_id: str, hashes: dict[str, str]) -> str:
    table = Table(["split", "hash"], [[split, f"`{digest}`"] for split, digest in hashes.items()])
    lines = "\n".join(table.markdown())
    commands = indent(
        dedent(f"""\
            pip wheel --no-deps -w wheels PATH_TO_GAGPO
            openenv validate .  --level static
            docker build -t {name} . && docker run -p 8000:8000 {name}
            openenv push . --repo-id YOU/{name}
            """),
        "    ",
    )
    front = f"---\ntitle: {name}\nsdk: docker\napp_port: 8000\ntags: [openenv]\n---\n"
    return f"{front}\n# {name}\n\n`{env_id}` as an OpenEnv server.\n\n{commands}\n{lines}\n"
