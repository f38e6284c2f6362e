"""Whose a container is: a label that names a process, so that those of a process that was killed can be found."""

from __future__ import annotations

import logging
import os
import socket
from contextlib import suppress
from pathlib import Path

from gagpo.base.errors import first_line
from gagpo.base.tables import ascii_only
from gagpo.envs.remote.container_engine import ContainerEngine, EngineFailed
from gagpo.envs.remote.protocol import as_list, as_object

LOG = logging.getLogger("gagpo")

OWNER = "gagpo-owner"
"""The label of every container of this project: boot, namespace, id and start of the process that it belongs to."""


def owner() -> str:
    """What the label says of this process."""
    return ":".join([*_place(), str(os.getpid()), _start(os.getpid())])


def is_orphan(label: str, running: bool) -> bool:
    """Whether the process that a label names is surely gone.

    Nothing is known of the processes of another machine, or of another namespace of this one. What ran before this
    machine was started has ended; one that runs all the same belongs to somebody elsewhere.

    >>> is_orphan(owner(), True), is_orphan(owner().rpartition(":")[0] + ":1", True), is_orphan("odd", True)
    (False, True, False)
    """
    parts = label.split(":")
    if len(parts) != 4 or not parts[2].isdecimal():
        return False
    boot, namespace = _place()
    if parts[0] != boot:
        return not running
    return parts[1] == namespace and _start(int(parts[2][:18])) != parts[3]


def sweep(engine: ContainerEngine) -> int:
    """Remove the containers of processes that are gone; how many. What cannot be removed is said, and left."""
    removed = 0
    try:
        for one in engine.list(OWNER):
            label, running = str(as_object(one.get("Labels")).get(OWNER)), one.get("State") == "running"
            if is_orphan(label, running):
                names = [str(name).lstrip("/") for name in as_list(one.get("Names"))]
                engine.remove(str(one.get("Id")))
                removed += 1
                LOG.warning("removed the container %s of a process that is gone", ascii_only(", ".join(names))[:100])
    except EngineFailed as error:
        LOG.warning("containers of processes that are gone may be left: %s", first_line(error))
    return removed


def _place() -> tuple[str, str]:
    """The boot of this machine and the namespace of process ids, each without a colon."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return boot, os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:
        return "-", socket.gethostname().replace(":", "-")


def _start(process: int) -> str:
    """When a process was started, in the system's own count; '' where there is none, '0' where that is not told."""
    with suppress(OSError, IndexError):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a dead one that nobody has reaped is gone
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "0"
