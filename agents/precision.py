"""Number formats by name: what weights are trained in, what a forward pass computes in, what is sampled in."""

from __future__ import annotations

import os
from typing import Any

from gagpo.base.errors import InvalidArgument

NAMES = ("float32", "bfloat16")
KERNELS = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
"""How many compiled kernels torch and oneDNN keep on a CPU in half precision, one for every size of every product."""


def require_known(name: str) -> None:
    """Refuse an unknown format, and float16: its range ends at 65,504, and losses overflow it."""
    if name == "float16":
        raise InvalidArgument(
            "float16 overflows in training and sampling alike: use bfloat16, or float32 where the device has none"
        )
    if name not in NAMES:
        raise InvalidArgument(f"unknown precision {name!r}; choose {' or '.join(NAMES)}")


def dtype_of(name: str) -> Any:
    """The torch format called ``name``."""
    import torch

    require_known(name)
    return getattr(torch, name)


def bound_kernels() -> None:
    """Keep fewer compiled kernels than the 1,024 of either library, which take more than a gigabyte.

    It holds for processes that have not yet computed in half precision; what the environment sets is left as it is.
    """
    for name, count in KERNELS.items():
        os.environ.setdefault(name, count)


def name_of(dtype: Any) -> str:
    """The name of a torch format, without ``torch.``."""
    return str(dtype).removeprefix("torch.")
