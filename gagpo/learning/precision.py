"""What forward and backward passes compute in."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch

from gagpo.settings import RunSettings

Scope = Callable[[], AbstractContextManager[object]]
"""Makes a context that something is computed in."""


def autocast(settings: RunSettings) -> torch.autocast:
    """Mixed precision as ``training.precision`` says; weights stay as they are."""
    return torch.autocast(
        torch.device(settings.device).type, torch.bfloat16, enabled=settings.training.precision == "bfloat16"
    )
