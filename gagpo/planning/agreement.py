"""Refuse in a plan what training refuses, except for lacks of this machine: a plan may be for another one."""

from __future__ import annotations

from pathlib import Path

from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.model import adapters
from gagpo.model.shape import Shape
from gagpo.settings import RunSettings, SettingsError


def require_trainable(settings: RunSettings) -> None:
    """Raise SettingsError for settings that ``gagpo train`` does not accept on any machine."""
    ranks = settings.processes
    if ranks > 1:
        require_fitting(settings, ranks)
        if ":" in settings.device:
            raise SettingsError(
                f"device={settings.device} names one GPU for {ranks} processes", key="device", advice="set device=cuda"
            )
    if settings.lora is not None and adapters.is_adapter(Path(settings.model)):
        raise SettingsError(
            f"model {settings.model} is an adapter already", advice="merge it first: gagpo export RUN FOLDER"
        )


def require_room_for_prompts(settings: RunSettings, shape: Shape) -> None:
    """Raise SettingsError if a response may fill the model's context."""
    if settings.longest_response >= shape.context:
        raise SettingsError(
            (
                f"rollout.max_tokens={settings.longest_response} leaves no room for a prompt in the "
                f"context of {settings.model} ({shape.context} tokens)"
            ),
            key="rollout.max_tokens",
            advice="lower it",
        )
