"""The backends by name."""

from __future__ import annotations

from gagpo.base.errors import InvalidArgument
from gagpo.envs.terminal.backends.base import EpisodeLimits, Sandbox
from gagpo.envs.terminal.backends.bubblewrap import BubblewrapSandbox
from gagpo.envs.terminal.backends.container import ContainerSandbox
from gagpo.envs.terminal.backends.harbor import PREFIX, HarborSandbox

BACKENDS = ("bubblewrap", "podman", "docker")


def make_sandbox(backend: str, image: str, limits: EpisodeLimits, max_output: int) -> Sandbox:
    """A sandbox that is not started yet.

    backend: one of ``BACKENDS``, or ``harbor:NAME`` for a backend of the package harbor.

    Raises InvalidArgument for another backend, and if it needs an image and none is named, or takes none.
    """
    if backend not in BACKENDS and not (isinstance(backend, str) and backend.startswith(PREFIX)):
        raise InvalidArgument(
            f"backend must be one of {', '.join(BACKENDS)}, {PREFIX}NAME (got {backend!r:.80})", key="backend"
        )
    if backend == "bubblewrap":
        if image:
            raise InvalidArgument(
                "image: bubblewrap takes no image", key="image", advice="use backend=podman or backend=docker"
            )
        return BubblewrapSandbox(limits, max_output)
    if not image:
        raise InvalidArgument(
            f"backend={backend} needs an image, such as image=docker.io/library/python:3.12-slim", key="backend"
        )
    if backend.startswith(PREFIX):
        return HarborSandbox(backend.removeprefix(PREFIX), image, limits, max_output)
    return ContainerSandbox(backend, image, limits, max_output)
