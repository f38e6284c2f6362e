"""Number formats by name, for training, forward passes and sampling."""

from __future__ import annotations

import os
from typing import Any

from gagpo.base.errors import InvalidArgument

NAMES = ("float32", "bfloat16")
AUTO = "auto"
"""In settings: the format that the machine computes fast, see :func:`gagpo.model.chosen_format.format_for`."""
KERNELS = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""Compiled kernels that torch and oneDNN keep on a CPU in half precision, one per size of each product."""


def require_known(name: str) -> None:
    """Raise InvalidArgument for an unknown format, and for float16, whose range ends at 65,504."""
    if name == "float16":
        raise InvalidArgument(
            "float16 overflows in training and sampling",
            key="dtype",
            advice="use bfloat16, or float32 if the device lacks it",
        )
    if name not in NAMES:
        raise InvalidArgument(f"unknown precision {name!r}", advice=f"choose {' or '.join(NAMES)}")


def dtype_of(name: str) -> Any:
    """The torch format called ``name``."""
    import torch

    require_known(name)
    return getattr(torch, name)


def autocast(device: str, precision: str) -> Any:
    """A context for forward passes in ``precision``, with weights in float32."""
    import torch

    require_known(precision)  # such as auto, which would compute in float32 without a word
    return torch.autocast(torch.device(device).type, torch.bfloat16, enabled=precision == "bfloat16")


def bound_kernels() -> None:
    """Limit the compiled kernels that torch and oneDNN keep; the default of 1,024 takes more than a gigabyte.

    On a GPU, leave out cuDNN's attention, which compiles a kernel for every length that a row grows to. Call it before
    the first computation in half precision. Variables that are set already stay.
    """
    import torch

    for name, count in KERNELS.items():
        os.environ.setdefault(name, count)
    torch.backends.cuda.enable_cudnn_sdp(False)


def name_of(dtype: Any) -> str:
    """The name of a torch format, without ``torch.``."""
    return str(dtype).removeprefix("torch.")
