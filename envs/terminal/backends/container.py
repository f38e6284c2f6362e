"""Sandboxes made by podman or docker, for tasks that need an image.

The image must contain bash, Python 3.9 or later and ``/app``.

The supervisor is the one of :mod:`gagpo.envs.terminal.backends.bubblewrap`. In a container it needs the capability to
mount, which the shell of an agent does not get; the files of the image's working folder are the tree at the start.
"""

from __future__ import annotations

import shutil

from gagpo.base.sandbox import SandboxUnavailable
from gagpo.envs.terminal.backends.base import WORKING_FOLDER, EpisodeLimits
from gagpo.envs.terminal.backends.bubblewrap import (
    CAPABILITIES,
    ROOT_FOLDERS,
    BubblewrapSandbox,
    SandboxProcess,
    supervisor_source,
)

MEMORY_OF_SUPERVISOR = 64 << 20


def arguments(engine: str, image: str, limits: EpisodeLimits) -> list[str]:
    """The command line of a container.

    The engine's filter of system calls and its profile forbid mounting, also to the supervisor. The shell of an agent
    has the supervisor's own filter instead.
    """
    line = [engine, "run", "--rm", "--interactive", "--network=none", "--pull=missing", "--hostname=sandbox"]
    line += ["--cap-drop=ALL", *(f"--cap-add={capability}" for capability in CAPABILITIES)]
    line += ["--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined"]
    # Read-only: the judge runs the programs of the same container.
    line += ["--read-only"]
    if engine == "podman":
        line += ["--read-only-tmpfs=false", "--security-opt=unmask=/proc/*"]
    line += [f"--memory={limits.memory + limits.disk + MEMORY_OF_SUPERVISOR}", f"--pids-limit={limits.processes + 8}"]
    for folder in ROOT_FOLDERS:
        if f"/{folder}" not in (WORKING_FOLDER, "/dev/shm"):
            line += [f"--tmpfs=/{folder}"]
    script = f'exec python3 -I -S -B -c "$1" 0 1 {WORKING_FOLDER}'
    return [*line, "--user=0:0", "--entrypoint=bash", image, "-c", script, "bash", supervisor_source()]


class ContainerSandbox(BubblewrapSandbox):
    """A container that is used for many episodes.

    engine: ``podman`` or ``docker``.
    """

    def __init__(self, engine: str, image: str, limits: EpisodeLimits | None = None, max_output: int = 4000):
        super().__init__(limits, max_output)
        self.engine = engine
        self.image = image

    def make_process(self) -> SandboxProcess:
        if shutil.which(self.engine) is None:
            raise SandboxUnavailable(
                f"{self.engine} is not installed", key="backend", advice="install it, or use backend=bubblewrap"
            )
        line = arguments(self.engine, self.image, self.limits)
        return SandboxProcess(lambda _: line, self._explain, by_standard_streams=True)

    def _explain(self, errors: str) -> str:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        reason = (lines or ["it ended without a message"])[-1][:300]
        needs = f"the image must contain bash, python3 and {WORKING_FOLDER}"
        return f"{self.engine} cannot run the image {self.image}: {reason}; {needs}"
