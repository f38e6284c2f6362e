"""Everything that is said to Ray from inside the cluster: hosts of environments and servers, placed from a rank."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

from gagpo.agents.engines.ranks import Rank
from gagpo.agents.engines.remote.server import ServerPlan
from gagpo.agents.model import ModelError
from gagpo.base.errors import first_line
from gagpo.collecting.placement import LocalPlacement, pool_options
from gagpo.envs.pool import Pool
from gagpo.ray.pool import ClusterPool, HostLost, PoolHost
from gagpo.ray.server import PlacedServer, ServerHost
from gagpo.settings import EngineSettings, EnvironmentSettings, RolloutSettings, RunSettings

_numbers = itertools.count()


class RayConnection:
    """The connection to a host of environments in an actor; ``make`` starts one."""

    def __init__(self, make: Callable[[], Any]):
        self._make = make
        self._actor = make()

    def ask(self, batch: bytes) -> Any:
        return self._actor.exchange.remote(batch)

    def answer(self, call: Any) -> bytes:
        try:
            answer: bytes = ray.get(call)
            return answer
        except RayTaskError:
            raise  # a fault of ours in the host
        except RayError as error:
            raise HostLost(f"a host of environments died ({first_line(error)})") from None

    def replace(self) -> None:
        ray.kill(self._actor)
        self._actor = self._make()

    def close(self) -> None:
        ray.kill(self._actor)


def ready(calls: Sequence[Any], timeout: float) -> list[Any]:
    """Those of ``calls`` that have ended, waiting for the first."""
    return list(ray.wait(list(calls), num_returns=1, timeout=timeout)[0])


class RayPlace(LocalPlacement):
    """What a rank in a Ray cluster is given: hosts of environments and servers elsewhere, where it asks for them."""

    def __init__(self, settings: RunSettings, folder: Path):
        self._cluster = settings.cluster
        self._folder = folder

    def open_world(self, world: EnvironmentSettings, rolling: RolloutSettings) -> Pool:
        if not self._cluster.hosts:
            return super().open_world(world, rolling)
        options = pool_options(rolling)

        def make() -> Any:
            kind = ray.remote(PoolHost).options(
                name=f"gagpo-host-{_unique()}", num_cpus=self._cluster.cpus, scheduling_strategy="SPREAD"
            )
            return kind.remote(world.id, dict(world.kwargs), options)

        connections = [RayConnection(make) for _ in range(self._cluster.hosts)]
        return ClusterPool(connections, ready, restarts=self._cluster.restarts)

    def engine_arguments(self, settings: EngineSettings) -> Mapping[str, Any]:
        shared = super().engine_arguments(settings)
        if settings.name != "vllm-server" or settings.options.get("urls"):
            return shared
        if "folder" not in settings.options:
            shared = {**shared, "folder": str(self._folder / "weights")}
        if settings.options.get("placement") == "colocated":
            return shared  # beside the rank, on its own device
        place = Rank(Rank.of(os.environ).rank)  # the cluster finds GPUs for each server, whoever else is on its machine
        return {**shared, "place": place, "start_with": lambda plan, log: PlacedServer(plan, self._place_server)}

    def _place_server(self, plan: ServerPlan) -> tuple[Callable[..., Any], Callable[[], None]]:
        kind = ray.remote(_PlacedHost).options(
            name=f"gagpo-server-{_unique()}",
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
                raise HostLost(
                    f"its actor did not answer within {deadline:g} s; is there room in the cluster?"
                ) from None
            except RayActorError as error:
                raise HostLost(first_line(error)) from None

        return ask, lambda: ray.kill(actor)


class _PlacedHost(ServerHost):
    """A server's host that asks Ray for its address and its GPUs."""

    def __init__(self) -> None:
        super().__init__(ray.util.get_node_ip_address(), tuple(int(gpu) for gpu in ray.get_gpu_ids()))


def _unique() -> str:
    return f"{ray.get_runtime_context().get_actor_id() or 'driver'}-{next(_numbers)}"
