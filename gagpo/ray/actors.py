"""vLLM servers that a rank starts on other nodes through Ray."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from gagpo.agents.engines.ranks import Rank
from gagpo.agents.engines.remote.server import ServerPlan
from gagpo.agents.model import ModelError
from gagpo.base.errors import first_line
from gagpo.collecting.placement import LocalPlacement
from gagpo.ray.server import HostLost, PlacedServer, ServerHost
from gagpo.settings import EngineSettings, RunSettings

_numbers = itertools.count()


class RayPlace(LocalPlacement):
    """Placement in a Ray cluster: environments on the rank's node, vLLM servers on any node with free GPUs."""

    def __init__(self, settings: RunSettings, folder: Path):
        self._cluster = settings.cluster
        self._folder = folder

    def engine_arguments(self, settings: EngineSettings) -> Mapping[str, Any]:
        shared = super().engine_arguments(settings)
        if settings.name != "vllm-server" or settings.options.get("urls"):
            return shared
        if "folder" not in settings.options:
            shared = {**shared, "folder": str(self._folder / "weights")}
        if settings.options.get("placement") == "colocated":
            return shared  # next to the rank, on its own device
        place = Rank(Rank.of(os.environ).rank)  # the cluster finds GPUs for each server
        return {**shared, "place": place, "start_with": lambda plan, log: PlacedServer(plan, self._place_server)}

    def _place_server(self, plan: ServerPlan) -> tuple[Callable[..., Any], Callable[[], None]]:
        kind = ray.remote(_PlacedHost).options(
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


class _PlacedHost(ServerHost):
    """A server's host that asks Ray for its address and its GPUs."""

    def __init__(self) -> None:
        super().__init__(ray.util.get_node_ip_address(), tuple(int(gpu) for gpu in ray.get_gpu_ids()))
