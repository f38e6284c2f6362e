"""The backends by name."""

from __future__ import annotations

from typing import Literal, get_args

from gagpo.base.errors import InvalidArgument
from gagpo.envs.terminal.backends.base import EpisodeLimits, Sandbox
from gagpo.envs.terminal.backends.bubblewrap import BubblewrapSandbox
from gagpo.envs.terminal.backends.container import ContainerSandbox

Backend = Literal["bubblewrap", "podman", "docker"]
BACKENDS: tuple[str, ...] = get_args(Backend)


def make_sandbox(backend: str, image: str, limits: EpisodeLimits, max_output: int) -> Sandbox:
    """A sandbox that is not started yet.

    Raises InvalidArgument if the backend needs an image and none is named, or takes none.
    """
    if backend == "bubblewrap":
        if image:
            raise InvalidArgument("image: bubblewrap takes no image", advice="use backend=podman or backend=docker")
        return BubblewrapSandbox(limits, max_output)
    if not image:
        raise InvalidArgument(f"backend={backend} needs an image, such as image=docker.io/library/python:3.12-slim")
    return ContainerSandbox(backend, image, limits, max_output)
