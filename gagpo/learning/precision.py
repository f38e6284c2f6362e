"""What forward and backward passes compute in."""

from __future__ import annotations

from typing import Any

import torch

from gagpo.settings import RunSettings


def autocast(settings: RunSettings) -> Any:
    """Mixed precision as ``training.precision`` says; weights stay as they are."""
    return torch.autocast(
        torch.device(settings.device).type, torch.bfloat16, enabled=settings.training.precision == "bfloat16"
    )
