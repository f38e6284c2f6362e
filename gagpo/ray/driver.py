"""``gagpo train --ray ADDRESS``: place the ranks of a run in a cluster, and restart them when one is lost.

The output of the ranks appears in this terminal. A run that lost a rank resumes from its last checkpoint, so its folder
must be visible on every node that may hold a rank.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from gagpo.base.child import RestartBudget
from gagpo.base.errors import GagpoError, MissingPackage, first_line
from gagpo.eval.results import EvalResult
from gagpo.eval.runs import final_results
from gagpo.ray.rank import INVALID, LOST, Rank, send_signal
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import dump

LOCAL = "local"
REACH_SECONDS = 10.0
SAVE_SECONDS = 120.0  # for interrupted ranks to write a checkpoint

Say = Callable[[str], None]


class ClusterError(GagpoError, RuntimeError):
    """The cluster cannot be reached, has too few resources, or lost the run too often."""


def train_on(address: str, folder: RunFolder, say: Say) -> dict[str, EvalResult]:
    """Train the run in ``folder`` in the Ray cluster at ``address`` (``local``: one on this machine).

    Returns the final evaluations by panel. Raises :class:`ClusterError`, also for a user error on a rank.
    """
    with _connected(address):
        settings = folder.settings
        restarts = RestartBudget(settings.cluster.restarts)
        while True:
            loss = _Attempt(folder).run()
            if not loss:
                return final_results(folder.path, settings.panels)
            if not restarts.take():
                raise ClusterError(f"{loss}; restarted {restarts.most} times (cluster.restarts) in the last hour")
            say(f"{loss}; restarting from the last checkpoint ({restarts.taken} of {restarts.most} in this hour)")


@contextmanager
def _connected(address: str) -> Iterator[None]:
    try:
        import ray
    except ImportError:
        raise MissingPackage("--ray requires the package ray: pip install 'gagpo[ray]'") from None
    _require_reachable(address)
    variables = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    variables["PYTHONUNBUFFERED"] = "1"
    if address == LOCAL:
        os.environ.setdefault("RAY_worker_niceness", "0")  # else ranks get no CPU time on a busy machine
    try:
        ray.init(
            address=LOCAL if address == LOCAL else address,
            namespace="gagpo",
            log_to_driver=True,
            runtime_env={"env_vars": variables},
            logging_level=logging.WARNING,
            **({"include_dashboard": False} if address == LOCAL else {}),
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ClusterError(f"the Ray cluster at {address} cannot be reached: {first_line(error)}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _require_reachable(address: str) -> None:
    """Raise ClusterError at once; Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ClusterError(f"the Ray cluster at {address} cannot be reached: {error}") from None


class _Attempt:
    """The ranks of one start."""

    def __init__(self, folder: RunFolder):
        import ray

        self.ray = ray
        self.folder, self.settings = folder, folder.settings
        self.cluster = self.settings.cluster
        self.gpus = 1 if self.settings.device.startswith("cuda") else 0

    def run(self) -> str:
        """Train to the end; return what was lost, or an empty string. Raises errors that the user has to fix."""
        group = self._reserve()
        ranks: list[Any] = []
        try:
            ranks = [self._place(number, group) for number in range(self.settings.processes)]
            return self._train(ranks)
        finally:
            for rank in ranks:
                self.ray.kill(rank)
            self.ray.util.remove_placement_group(group)

    def _reserve(self) -> Any:
        """Reserve resources for all ranks or for none, close to each other if possible."""
        need = {"CPU": self.cluster.cpus} | ({"GPU": float(self.gpus)} if self.gpus else {})
        group = self.ray.util.placement_group([need] * self.settings.processes, strategy="PACK")
        if not group.wait(self.cluster.start_deadline):
            self.ray.util.remove_placement_group(group)
            raise ClusterError(
                f"the cluster had no room for {self.settings.processes} ranks of {need} within "
                f"{self.cluster.start_deadline:g} s; it has {self.ray.available_resources()}"
            )
        return group

    def _place(self, number: int, group: Any) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        strategy = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=number)
        kind = self.ray.remote(Rank).options(
            name=f"gagpo-rank-{number}-{os.urandom(4).hex()}",
            num_cpus=self.cluster.cpus,
            num_gpus=self.gpus,
            scheduling_strategy=strategy,
            max_restarts=0,  # all ranks start again together, from the checkpoint
        )
        return kind.remote()

    def _train(self, ranks: Sequence[Any]) -> str:
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            places = self.ray.get([rank.address.remote() for rank in ranks], timeout=self.cluster.start_deadline)
            self.processes = self.ray.get([rank.process.remote() for rank in ranks], timeout=60)
        except (RayActorError, GetTimeoutError) as error:
            return f"a rank was lost while it started ({first_line(error)})"
        path, text = str(self.folder.path.absolute()), dump(self.settings)
        calls = [
            rank.train.remote(path, text, variables)
            for rank, variables in zip(ranks, variables_of(places), strict=True)
        ]
        try:
            return self._follow(calls)
        except KeyboardInterrupt:
            self._interrupt(calls)
            raise

    def _follow(self, calls: Sequence[Any]) -> str:
        """Wait for the ranks; the first that is lost ends the attempt."""
        from ray.exceptions import RayActorError

        left = list(calls)
        while left:
            done, left = self.ray.wait(left, num_returns=1, timeout=1.0)
            for call in done:
                try:
                    outcome, message = self.ray.get(call)
                except RayActorError as error:
                    return f"rank {list(calls).index(call)} was lost ({first_line(error)})"
                if outcome == INVALID:
                    raise ClusterError(message)
                if outcome == LOST:
                    return str(message)
        return ""

    def _interrupt(self, calls: Sequence[Any]) -> None:
        """Have the ranks write a checkpoint and end. Ray blocks SIGINT in its processes, so SIGTERM is sent."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        print("interrupted: waiting for the ranks to write a checkpoint", file=sys.stderr, flush=True)
        with suppress(self.ray.exceptions.RayError):
            send = self.ray.remote(send_signal)
            for process, node in self.processes:
                strategy = NodeAffinitySchedulingStrategy(node, soft=False)
                send.options(num_cpus=0, scheduling_strategy=strategy).remote(process, signal.SIGTERM)
            self.ray.wait(list(calls), num_returns=len(calls), timeout=SAVE_SECONDS)


def variables_of(places: Sequence[tuple[str, int]]) -> list[dict[str, str]]:
    """The environment variables that torchrun would set for ranks at these addresses; they meet at the first.

    Every rank sees only its own GPU, as number 0.
    """
    nodes = [address for address, _ in places]
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": "0",
            "LOCAL_WORLD_SIZE": str(nodes.count(nodes[rank])),
            "MASTER_ADDR": places[0][0],
            "MASTER_PORT": str(places[0][1]),
        }
        for rank in range(len(places))
    ]
