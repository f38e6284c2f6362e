"""Decoding steps recorded as CUDA graphs: a small model's kernels take less time than their launches from Python.

Shape suffixes: S first slots of the cache, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gagpo.model.flat.attention import forward
from gagpo.model.flat.slots import ROUND, SlotCache

SLOTS = 32  # recorded steps read a multiple of so many slots: a graph serves all batches up to its size


@dataclass
class _Step:
    """A recorded step and the tensors it reads; ``graph`` is None where steps are computed anew."""

    token_S: Tensor
    position_S: Tensor
    keys: int
    graph: torch.cuda.CUDAGraph | None = None


class RecordedSteps:
    """Decoding steps of the first slots of a cache, recorded for each pair of sizes.

    A recorded step reads the weights and the cache where they lay in memory: call :meth:`clear` when weights move.
    Without a GPU the same steps are computed and nothing is recorded.
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._reset(None)

    def _reset(self, store: Tensor | None) -> None:
        self._steps: dict[tuple[int, int], _Step] = {}
        self._store = store  # keys of the first layer
        self._logits_SV: Tensor | None = None  # of the step computed last
        self._pool: Any = None  # memory that all graphs use in turn

    def clear(self, store: Tensor | None = None) -> None:
        """Forget all steps. Their memory goes back to the driver: torch would keep it aside."""
        recorded = any(step.graph for step in self._steps.values())
        self._reset(store)
        if recorded:
            torch.cuda.empty_cache()

    def __call__(self, cache: SlotCache, token_S: np.ndarray, position_S: np.ndarray) -> Tensor:
        """Logits ``(S, V)`` after one more token of each of the first slots; they change with the next call.

        Raises: RuntimeError if the model's forward pass cannot be recorded: it waits for the GPU, or memory is short.
        """
        if self._store is not cache.key[0]:  # a new cache, or one that has grown: graphs refer to freed memory
            self.clear(cache.key[0])
        slots = min(-(-len(token_S) // SLOTS) * SLOTS, cache.slots)
        keys = min(-(-(int(position_S.max()) + 1) // ROUND) * ROUND, cache.capacity)
        step = self._steps.get((slots, keys))
        new = step is None
        if step is None:
            token, position = torch.zeros(2, slots, dtype=torch.long, device=cache.device)
            step = self._steps[slots, keys] = _Step(token, position, keys)
        # Slots behind them belong to no session: what lies there may be overwritten.
        step.token_S[: len(token_S)] = torch.as_tensor(token_S, device=cache.device)
        step.position_S[: len(token_S)] = torch.as_tensor(position_S, device=cache.device)
        if new and step.token_S.is_cuda:
            self._record(cache, step)
        if step.graph is None:
            self._compute(cache, step)
        else:
            step.graph.replay()
        assert self._logits_SV is not None
        return self._logits_SV[: len(token_S)]

    def _compute(self, cache: SlotCache, step: _Step) -> None:
        cache.plan_step(step.position_S, step.keys)
        every_S = torch.arange(len(step.token_S), device=cache.device)
        logits_SV = forward(self._model, step.token_S, cache, every_S)
        if self._logits_SV is None:  # one tensor for all steps, so that a graph keeps no memory of its own
            self._logits_SV = logits_SV.new_empty(cache.slots, logits_SV.shape[1])
        self._logits_SV[: len(logits_SV)] = logits_SV

    def _record(self, cache: SlotCache, step: _Step) -> None:
        """Record a step. Capture needs a stream of its own, which waits for the work under way and then the reverse."""
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.Stream()
        current = torch.cuda.current_stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            self._compute(cache, step)  # once without recording: libraries choose kernels and allocate
            # Other threads may use the GPU meanwhile (rollout.ahead trains in one); only this one's calls are recorded.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._compute(cache, step)
            finally:
                graph.capture_end()
        current.wait_stream(stream)
        step.graph = graph
        self._pool = graph.pool()
