"""The options of the engine ``vllm``, and the checks that need no server."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gagpo.agents.engines.options import EngineInputs, EngineOptions
from gagpo.agents.engines.remote.placement import CPU_CACHE_BYTES, GPU_MEMORY, require_vllm
from gagpo.base.errors import InvalidArgument

if TYPE_CHECKING:
    from gagpo.agents.engines.base import Engine

OTHER_GPUS = "{replicas: 1, gpus: [4, 5], tensor_parallel_size: 2}"
"""Options that run a server on GPUs that no rank trains on, for error messages."""


class VLLMOptions(EngineOptions):
    """Options of the engine ``vllm``, which samples at vLLM servers."""

    serves: ClassVar[bool] = True
    needs_weights: ClassVar[bool] = False
    takes_memory: ClassVar[bool] = True
    memory_fraction: ClassVar[float] = GPU_MEMORY["colocated"]
    cpu_cache_bytes: ClassVar[int] = CPU_CACHE_BYTES

    urls: list[str] = Field([], description="existing servers, fewer or more than ranks; empty: the run starts its own")
    replicas: int | None = Field(None, ge=1, description="servers that each rank starts; 1 by default")
    placement: Literal["separate", "colocated"] | None = Field(
        None,
        description="colocated: one server on the rank's GPU, which sleeps during updates; separate: servers on other "
        "GPUs; by default colocated on a GPU unless urls or gpus are given",
    )
    gpus: list[int] = Field([], description="numbers of the GPUs for separate servers, shared by the machine's ranks")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs of one server")
    folder: str | None = Field(
        None,
        description="folder for weights on their way to servers; servers on other machines need the same path; by "
        "default in /dev/shm if it has room, else the folder of temporary files",
    )
    transfer: Literal["files", "nccl"] = Field(
        "files",
        description="how weights get to servers: files, or nccl from the trainer's GPU to GPUs that no rank trains on, "
        "by vLLM's own weight transfer",
    )
    logs: str | None = Field(None, description="folder for the servers' logs; by default deleted at the end")
    timeout: float = Field(600.0, gt=0, description="seconds for a response, and for each step of a weight update")
    health_timeout: float = Field(
        30.0, gt=0, description="seconds without a healthy answer after which a server is given up"
    )
    start_timeout: float = Field(900.0, gt=0, description="seconds for a server to start")

    @field_validator("urls")
    @classmethod
    def _distinct_addresses(cls, urls: list[str]) -> list[str]:
        for url in urls:
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                raise InvalidArgument(f"{url!r:.60} is not an http address of a server", key="urls")
        if len(set(urls)) != len(urls):
            raise InvalidArgument("urls names a server twice", key="urls")
        return urls

    @model_validator(mode="after")
    def _compatible(self) -> VLLMOptions:
        if self.urls and self.replicas:
            raise InvalidArgument(
                "give urls of servers that exist, or how many replicas to start, not both", key="replicas"
            )
        if self.placement == "colocated" and self.replicas not in (None, 1):
            raise InvalidArgument(f"replicas must be 1 when colocated (got {self.replicas})", key="replicas")
        if self.transfer == "nccl" and self.is_colocated("cuda"):
            raise InvalidArgument(
                "transfer=nccl connects different GPUs",
                key="transfer",
                advice=f"name some that no rank trains on, engine.options={OTHER_GPUS}, or set transfer=files",
            )
        self._require_one_gpu()
        return self

    def _require_one_gpu(self) -> None:
        """Raise InvalidArgument if a server on the rank's own GPU is given more than one GPU.

        Split over the ranks' processes, vLLM would need the same requests from all of them, but each rank samples its
        own task groups.
        """
        several = [name for name in ("tensor_parallel_size", "gpus") if getattr(self, name) not in (1, [])]
        if several and self.is_colocated("cuda"):
            raise InvalidArgument(
                (
                    f"vllm runs one server on each rank's own GPU, but engine.options.{several[0]} asks for "
                    "several GPUs. For a model that is too large for one GPU, use GPUs that no rank trains "
                    f"on: engine.options={OTHER_GPUS} (for each rank; with rollout.ahead=1 one server for "
                    "all). engine.dtype=bfloat16 halves the memory on the own GPU"
                ),
                key=several[0],
            )

    def is_colocated(self, device: str) -> bool:
        """Whether a server shares the rank's ``device``, as it does by default on a GPU if no others are named."""
        if self.placement is not None:
            return self.placement == "colocated"
        return device != "cpu" and not self.urls and not self.gpus

    def uses_device(self, device: str) -> bool:
        """Whether a server uses the memory of ``device``: on a CPU every server of this machine does."""
        return not self.urls and (device == "cpu" or self.is_colocated(device))

    def require_machine(self) -> None:
        """Raise MissingPackage if a server must be started here and vLLM is not installed."""
        if not self.urls:
            require_vllm()

    def build(self, inputs: EngineInputs) -> Engine:
        """The engine; :meth:`~gagpo.agents.engines.base.Engine.start` starts its servers."""
        from gagpo.agents.engines.remote.engine import VLLMServerEngine

        return VLLMServerEngine(inputs, self)
