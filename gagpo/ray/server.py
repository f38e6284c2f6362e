"""A vLLM server on another node, started there by a Ray actor, with the interface of a local server."""

from __future__ import annotations

import dataclasses
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gagpo.agents.engines.ranks import Rank, is_colocated
from gagpo.agents.engines.registry import SERVERS
from gagpo.agents.engines.remote.server import Server, ServerPlan
from gagpo.agents.model import ModelError
from gagpo.base.errors import GagpoError, first_line
from gagpo.collecting.placement import LocalPlacement
from gagpo.settings import EngineSettings, RunSettings


class HostLost(GagpoError, RuntimeError):
    """The actor of a server died or does not answer."""


ASK_SECONDS = 30.0  # for an answer that takes no work
_numbers = itertools.count()


class ServerHost:
    """Runs in an actor: starts a server with the config it is sent, on the GPUs of the actor."""

    def __init__(self) -> None:
        import ray

        self._address, self._gpus = ray.util.get_node_ip_address(), tuple(int(gpu) for gpu in ray.get_gpu_ids())
        self._folder = tempfile.TemporaryDirectory(prefix="gagpo-vllm-")
        self._server: Server | None = None

    def start(self, plan: ServerPlan, config: str) -> tuple[str, int | None]:
        """Begin to start a server; return its address and process id."""
        folder = Path(self._folder.name)
        (folder / "config.json").write_text(config, encoding="utf-8")
        here = dataclasses.replace(plan, folder=str(folder), devices=self._gpus if plan.devices else ())
        self._server = Server(here, folder / "log", self._address)
        self._server.start()
        return self._server.url, self._server.process

    def ready(self, seconds: float) -> bool:
        """Whether the server is ready, after at most ``seconds``; ModelError if it has ended."""
        assert self._server is not None
        return self._server.ready(seconds)

    def running(self) -> bool:
        return self._server is not None and self._server.running


class PlacedServer:
    """A server in a cluster with the interface of :class:`gagpo.agents.engines.remote.server.Server`.

    place: starts an actor that runs :class:`ServerHost`, and returns two functions. The first calls a method of it
        within a deadline (it raises :class:`HostLost`), the second ends it.
    """

    def __init__(self, plan: ServerPlan, place: Callable[[ServerPlan], tuple[Callable[..., Any], Callable[[], None]]]):
        self.plan = plan
        self._config = (Path(plan.folder) / "config.json").read_text(encoding="utf-8")
        self._place = place
        self._ask: Callable[..., Any] | None = None
        self._end: Callable[[], None] = lambda: None
        self.url = ""
        self.process: int | None = None

    @property
    def running(self) -> bool:
        try:
            return self._ask is not None and bool(self._ask("running", deadline=ASK_SECONDS))
        except HostLost:
            return False

    def start(self) -> None:
        """Begin to start the server, in place of the running one."""
        self.close()
        self._ask, self._end = self._place(self.plan)
        try:
            self.url, self.process = self._ask("start", self.plan, self._config, deadline=600.0)
        except HostLost as error:
            raise ModelError(f"a vLLM server could not be started in the cluster: {error}") from None

    def wait(self, deadline: float) -> None:
        """Wait until the server is ready; ModelError if it ends or takes too long."""
        assert self._ask is not None
        end = time.monotonic() + deadline
        try:
            while not self._ask("ready", 5.0, deadline=ASK_SECONDS):
                if time.monotonic() > end:
                    raise ModelError(f"a vLLM server in the cluster was not ready after {deadline:g} s")
        except HostLost as error:
            raise ModelError(f"a vLLM server in the cluster ended while it started: {error}") from None

    def close(self) -> None:
        """End the server; idempotent."""
        self._end()
        self._ask, self._end = None, lambda: None


class RayPlace(LocalPlacement):
    """Placement in a Ray cluster: environments on the rank's node, vLLM servers on any node with free GPUs."""

    def __init__(self, settings: RunSettings, folder: Path):
        self._cluster, self._device = settings.cluster, settings.device
        self._folder = folder

    def engine_arguments(self, settings: EngineSettings) -> Mapping[str, Any]:
        shared = super().engine_arguments(settings)
        if settings.name not in SERVERS or settings.options.get("urls"):
            return shared
        if "folder" not in settings.options:
            shared = {**shared, "folder": str(self._folder / "weights")}
        if is_colocated(settings.options, self._device):
            return shared  # next to the rank, on its own device
        place = Rank(Rank.of(os.environ).rank)  # the cluster finds GPUs for each server
        return {**shared, "place": place, "start_with": lambda plan, log: PlacedServer(plan, self._place_server)}

    def _place_server(self, plan: ServerPlan) -> tuple[Callable[..., Any], Callable[[], None]]:
        import ray
        from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

        kind = ray.remote(ServerHost).options(
            name=f"gagpo-server-{ray.get_runtime_context().get_actor_id() or 'driver'}-{next(_numbers)}",
            num_cpus=self._cluster.cpus,
            num_gpus=len(plan.devices),
            scheduling_strategy="SPREAD",
        )
        actor = kind.remote()

        def ask(method: str, *arguments: Any, deadline: float) -> Any:
            try:
                return ray.get(getattr(actor, method).remote(*arguments), timeout=deadline)
            except RayTaskError as error:
                if isinstance(error.cause, ModelError):
                    raise error.cause from None
                raise
            except GetTimeoutError:
                raise HostLost(f"its actor did not answer in {deadline:g} s; is the cluster full?") from None
            except RayActorError as error:
                raise HostLost(first_line(error)) from None

        return ask, lambda: ray.kill(actor)
