"""Weight synchronisation: an engine gets the weights of the model in training after an update.

The engine sleeps during an update because weights, gradients and caches together may not fit one GPU. If the update
fails, it stays asleep: a response from half-changed weights would look like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from gagpo.agents.engines.base import Engine
from gagpo.model.dtypes import dtype_of
from gagpo.model.weights import PolicyTensors, named_tensors


@contextmanager
def weights_synced(engine: Engine, model: torch.nn.Module, sleep: bool = True) -> Iterator[None]:
    """A context in which ``model`` may change; the engine gets the new weights at its end.

    If the block raises, a sleeping engine stays asleep and rejects requests.

    sleep: free the engine's memory during the block; nothing may be under way.
    """
    if sleep:
        engine.sleep()
    yield
    if sleep:  # not in a finally: after an error the engine has old weights, or none
        engine.wake()
    if engine.shares_weights:
        engine.load_weights(named_tensors(model, merged=False))
    else:
        engine.load_weights(PolicyTensors(model, dtype_of(engine.dtype)))
