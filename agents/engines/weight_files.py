"""How large the files are in which weights pass to an engine's servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightFiles:
    """Files that the servers of one machine read in an update, however many ranks and servers it has.

    bytes: of one update; they exist until the last server has read them.
    first_bytes: of the first update, which also brings the base of an adapter.
    """

    bytes: int
    first_bytes: int


def weight_files(model_bytes: int, adapter_bytes: int | None = None) -> WeightFiles:
    """The files of each machine.

    model_bytes: of all weights in the engine's format.
    adapter_bytes: of an adapter that servers load next to its base; None if all weights are sent.
    """
    if adapter_bytes is None:
        return WeightFiles(model_bytes, model_bytes)
    return WeightFiles(adapter_bytes, model_bytes + adapter_bytes)
