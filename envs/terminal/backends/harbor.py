"""Sandboxes of the package ``harbor``: ``backend=harbor:NAME`` for its cloud backends, such as ``harbor:daytona``.

Harbor starts an environment, runs commands in it and moves files. A step program does the rest inside: it keeps the
state of the shell and hashes files. The agent may be root there and could change that program, which harms its own
episode alone: the judge gets the files, in a fresh environment without the agent's processes.

Tested with a stand-in for the package, never with a cloud.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import shlex
import tempfile
import uuid
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gagpo.base.errors import InvalidArgument, MissingPackage
from gagpo.base.extras import pip_install
from gagpo.base.sandbox import SandboxUnavailable
from gagpo.envs.terminal.backends.base import (
    VARIABLES,
    WORKING_FOLDER,
    BadTree,
    CommandResult,
    EpisodeLimits,
    SandboxLost,
    Saved,
    Stream,
)
from gagpo.envs.terminal.backends.bubblewrap import supervisor_source
from gagpo.envs.terminal.tree import Node, Tree, from_wire, to_wire

PREFIX = "harbor:"
FOLDER = "/opt/gagpo"  # of the step program
START_SECONDS = 1800.0  # a cloud may build the image first
ORDER_SECONDS = 120.0  # beyond a command's own limit: three requests over the network
MAX_ANSWER = 256 << 20  # bytes

Result = TypeVar("Result")


class Harbor(NamedTuple):
    """What is used of the package."""

    factory: Any
    types: Any
    environment_config: Any
    trial_paths: Any


def load_harbor() -> Harbor:
    """Import the package. Raises MissingPackage."""
    try:
        return Harbor(
            importlib.import_module("harbor.environments.factory").EnvironmentFactory,
            importlib.import_module("harbor.models.environment_type").EnvironmentType,
            importlib.import_module("harbor.models.task.config").EnvironmentConfig,
            importlib.import_module("harbor.models.trial.paths").TrialPaths,
        )
    except ImportError as error:
        raise MissingPackage(
            f"backend=harbor:NAME needs the package harbor, on Python 3.12 or later ({error})",
            key="backend",
            advice=pip_install("gagpo[harbor]"),
        ) from None


class HarborSandbox:
    """An environment of Harbor, one for each episode: ``start`` makes another.

    name: of Harbor's backend, such as ``daytona``.
    image: an image that contains bash, Python 3.9 or later and ``/app``.
    """

    def __init__(self, name: str, image: str, limits: EpisodeLimits | None = None, max_output: int = 4000):
        harbor = load_harbor()
        try:
            self._type = harbor.types(name)
        except ValueError:
            names = ", ".join(str(member.value) for member in harbor.types)
            raise InvalidArgument(f"unknown backend harbor:{name}", advice=f"choose NAME from {names}") from None
        self._harbor = harbor
        self.image = image
        self.limits = limits or EpisodeLimits()
        self.max_output = max_output
        self._runner: asyncio.Runner | None = None
        self._environment: Any = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._last: dict[str, Any] = {}  # variables and directory after the last command
        self._entries: list[Any] | None = None  # the files of an episode whose environment has ended

    def start(self, tree: Tree, mounts: Mapping[str, Tree] | None = None) -> str:
        entries = to_wire(tree) if tree else []
        for place, content in (mounts or {}).items():
            entries += to_wire(content, place.strip("/"))
        return self._start(entries, bool(tree), list(mounts or {}), WORKING_FOLDER, "")

    def run(self, command: str, seconds: float) -> CommandResult:
        data = base64.b64encode(command.encode("utf-8", "surrogateescape")).decode()
        answer = self._order({"name": "run", "command": data, **self._options(seconds)}, seconds)
        try:
            output, errors = (Stream(_bytes(head), _bytes(tail), int(size)) for head, tail, size in answer["streams"])
            changes = [str(change) for change in answer["changes"]]
            texts = (str(answer["directory"]), str(answer["state"]))
            self._last = answer
            return CommandResult(
                int(answer["status"]),
                output,
                errors,
                *texts,
                changes,
                bool(answer["restarted"]),
                str(answer["stopped"]),
            )
        except (KeyError, TypeError, ValueError):
            raise SandboxLost("the sandbox sent an invalid answer") from None

    def files(self, folder: str = WORKING_FOLDER) -> dict[str, Node]:
        entries = self._read() if self._entries is None else self._entries
        return from_wire(entries, folder.strip("/"))

    def kill(self) -> list[str]:
        """End the environment with every process; its files were fetched before. Command lines are not known."""
        self._entries = self._read()
        self._stop()
        return []

    def save(self) -> Saved:
        dump = str(self._last.get("dump", "")).encode()
        return Saved(self._read(), dump, str(self._last.get("directory", WORKING_FOLDER)))

    def restore(self, saved: Saved) -> str:
        return self._start(list(saved.entries), True, ["/logs"], saved.directory, saved.variables.decode())

    def close(self) -> None:
        self._stop()
        runner = self._runner
        self._runner = None
        if runner is not None:
            runner.close()

    def _options(self, seconds: float) -> dict[str, Any]:
        return {"seconds": seconds, "limit": self.max_output, "variables": VARIABLES}

    def _start(self, entries: list[Any], replace: bool, folders: list[str], directory: str, dump: str) -> str:
        self._stop()
        self._entries = None
        self._scratch = tempfile.TemporaryDirectory(prefix="gagpo-harbor-")
        scratch = Path(self._scratch.name)
        for name in ("environment", "trial"):
            (scratch / name).mkdir()
        # A backend that cannot enforce this says so when it is made.
        config = self._harbor.environment_config(
            docker_image=self.image, memory_mb=self.limits.memory >> 20, network_mode="no-network"
        )
        try:
            self._environment = self._harbor.factory.create_environment(
                type=self._type,
                environment_dir=scratch / "environment",
                environment_name="gagpo",
                session_id=f"gagpo-{uuid.uuid4().hex[:12]}",
                trial_paths=self._harbor.trial_paths(scratch / "trial"),
                task_env_config=config,
            )
            self._wait(self._environment.start(force_build=False), START_SECONDS)
            self._upload("supervisor.py", supervisor_source())
            self._upload("step.py", (Path(__file__).parent / "remote_step.py").read_text(encoding="utf-8"))
        except SandboxLost as error:
            self._stop()
            raise SandboxUnavailable(str(error)) from None
        except Exception as error:  # of any provider's client
            self._stop()
            raise SandboxUnavailable(self._failure(error)) from None
        order = {"name": "write", "replace": replace, "folders": folders, "directory": directory, "dump": dump}
        wire = [
            (_text(path), entry_type, mode, _text(content), changed)
            for path, entry_type, mode, content, changed in entries
        ]
        self._last = self._order({**order, "entries": wire, **self._options(ORDER_SECONDS)}, ORDER_SECONDS)
        return str(self._last.get("state", ""))

    def _read(self) -> list[Any]:
        answer = self._order({"name": "tree"}, 0.0)
        try:
            return [
                (_bytes(path), str(entry_type), int(mode), _bytes(content), int(changed))
                for path, entry_type, mode, content, changed in answer["entries"]
            ]
        except (KeyError, TypeError, ValueError):
            raise BadTree("the sandbox sent an invalid tree") from None

    def _order(self, order: dict[str, Any], seconds: float) -> dict[str, Any]:
        if self._environment is None or self._scratch is None:
            raise SandboxLost("the sandbox ended")
        self._upload("order.json", json.dumps(order))
        line = ["python3", "-I", "-S", "-B", *(f"{FOLDER}/{name}" for name in ("step.py", "order.json", "answer.json"))]
        deadline = seconds + ORDER_SECONDS
        self._wait(self._environment.exec(shlex.join(line), cwd="/", timeout_sec=int(deadline)), deadline)
        target = Path(self._scratch.name) / "answer.json"
        self._wait(self._environment.download_file(f"{FOLDER}/answer.json", target), ORDER_SECONDS)
        try:
            if target.stat().st_size > MAX_ANSWER:
                raise BadTree(f"the files of the sandbox have more than {MAX_ANSWER >> 20} MiB")
            answer = json.loads(target.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            raise SandboxLost("the sandbox sent an invalid answer") from None
        if isinstance(answer, dict) and isinstance(answer.get("answer"), dict):
            return dict(answer["answer"])
        raise BadTree(str(answer.get("error", answer) if isinstance(answer, dict) else answer)[:300])

    def _upload(self, name: str, content: str) -> None:
        assert self._scratch is not None
        path = Path(self._scratch.name) / name
        path.write_text(content, encoding="utf-8")
        if name == "supervisor.py":  # the first of an environment
            self._wait(self._environment.exec(f"mkdir -p {FOLDER}", cwd="/"), ORDER_SECONDS)
        self._wait(self._environment.upload_file(path, f"{FOLDER}/{name}"), ORDER_SECONDS)

    def _wait(self, request: Coroutine[Any, Any, Result], seconds: float) -> Result:
        """The result of a request to the provider. Raises SandboxLost where it fails or the deadline passes."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        try:
            return self._runner.run(asyncio.wait_for(request, seconds))
        except TimeoutError:
            raise SandboxLost(f"harbor:{self._type.value} did not answer within {seconds:g} s") from None
        except Exception as error:  # of any provider's client
            raise SandboxLost(self._failure(error)) from None

    def _failure(self, error: Exception) -> str:
        """The error of a provider in one line."""
        return f"harbor:{self._type.value} failed: " + " ".join(f"{type(error).__name__}: {error}".split())[:300]

    def _stop(self) -> None:
        """Delete the environment, which costs money while it runs."""
        environment, scratch = self._environment, self._scratch
        self._environment = self._scratch = None
        if environment is not None:
            with suppress(SandboxLost):
                self._wait(environment.stop(delete=True), ORDER_SECONDS)
        if scratch is not None:
            scratch.cleanup()


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: object) -> bytes:
    """Raises ValueError."""
    return base64.b64decode(str(text), validate=True)
