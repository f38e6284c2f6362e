"""The options and capabilities of an engine: what settings and memory planning know of it, without importing torch.

An engine of another package or file is a subclass of :class:`EngineOptions`, named in ``engine.name`` by its entry
point or as ``module:Class``:

    class EchoOptions(EngineOptions):
        '''Options of an engine that repeats one token.'''

        token: int = Field(5, ge=0, description="token of every response")

        def build(self, inputs: EngineInputs) -> Engine:
            return Echo(inputs.tokenizer, self.token)

An engine is asked for its capabilities and never for its name, so that a stranger's engine is planned, checked and used
as ours are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from gagpo.base.options import Options

if TYPE_CHECKING:
    import torch

    from gagpo.agents.engines.base import Engine
    from gagpo.agents.engines.parity import PolicyReader
    from gagpo.agents.engines.peers import Peers


@dataclass(frozen=True)
class EngineInputs:
    """What an engine is built from, next to its options.

    model: the model to sample from; for an engine without ``needs_weights`` it may be on the device ``meta``.
    tokenizer: of the model.
    max_length: maximum tokens of a prompt and its response; None for the model's limit.
    dtype: number format to sample in, by name; None for the model's.
    memory: fraction of the device's memory, in (0, 1); None for the engine's default.
    own_weights: ``model`` changes or is sharded while the engine samples, so the engine must hold a copy.
    reader: reads the sharded policy for checks of the engine; None if ``model`` has all weights.
    peers: the ranks that sample together, which may share servers; None if this process samples alone.
    """

    model: torch.nn.Module
    tokenizer: Any
    max_length: int | None = None
    dtype: str | None = None
    memory: float | None = None
    own_weights: bool = False
    reader: PolicyReader | None = None
    peers: Peers | None = None


class EngineOptions(Options):
    """The options of an engine as fields, and its capabilities as class attributes.

    serves: samples in other processes with weights of its own, so sampling continues during an update.
    needs_weights: reads the weights of the model in this process.
    takes_memory: allocates a fixed fraction of the device's memory, ``engine.gpu_memory_utilization``.
    same_numerics: in float32 its log-probabilities equal those of the trainer's forward pass bit for bit.
    memory_fraction: the fraction that it allocates if ``engine.gpu_memory_utilization`` is null.
    cpu_cache_bytes: minimum bytes of keys and values that it allocates on a CPU.
    """

    serves: ClassVar[bool] = False
    needs_weights: ClassVar[bool] = True
    takes_memory: ClassVar[bool] = False
    same_numerics: ClassVar[bool] = False
    memory_fraction: ClassVar[float] = 0.4
    cpu_cache_bytes: ClassVar[int] = 0

    max_length: int | None = Field(
        None, ge=1, description="maximum tokens of a prompt and its response; by default the model's limit"
    )

    def build(self, inputs: EngineInputs) -> Engine:
        """The engine, which starts no process or thread before :meth:`~gagpo.agents.engines.base.Engine.start`."""
        raise NotImplementedError(f"{type(self).__name__} has no method build(inputs) that returns the engine")

    @property
    def equal_logprobs(self) -> bool:
        """Whether ``same_numerics`` holds with these options."""
        return self.same_numerics

    def require_machine(self) -> None:
        """Raise GagpoError if this machine lacks a package or program that the engine needs."""

    def uses_device(self, device: str) -> bool:
        """Whether weights and caches of the engine are in the memory of the trainer's ``device``."""
        return True

    def shares_gpu(self, device: str) -> bool:
        """Whether another process of the engine allocates memory of the trainer's ``device``, a GPU."""
        return self.serves and device != "cpu" and self.uses_device(device)
