"""What a run takes of a cluster."""

from __future__ import annotations

from pydantic import Field

from gagpo.options import Options


class ClusterSettings(Options):
    """How a run is spread with ``gagpo train --ray``; nothing of it changes what is learned."""

    rank_cpus: float = Field(1.0, ge=0, description="cores that each of the `processes` is given")
    hosts: int = Field(
        0,
        ge=0,
        le=1024,
        description="pools of environments on other nodes for each rank, of rollout.workers each; 0: none",
    )
    host_cpus: float = Field(1.0, ge=0, description="cores that each of these is given")
    server_cpus: float = Field(1.0, ge=0, description="cores that each vLLM server is given, beside its GPUs")
    restarts: int = Field(
        10, ge=0, description="how often in an hour ranks, and hosts of environments, may be started again"
    )
    start_deadline: float = Field(600.0, gt=0, description="seconds to find room in the cluster")
