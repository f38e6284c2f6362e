"""The doctor's steps in their order: which of them all ranks take together, and how long each may take."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from gagpo.planning.doctor.machine import DoctorFinding, Machine

Check = Callable[[Machine], DoctorFinding]


@dataclass(frozen=True)
class Step:
    """check: ``module:function``, which is imported where it runs. together: all ranks take it, else one process.

    seconds: that it may take, the start of its processes apart.
    """

    name: str
    check: str
    seconds: float = 60.0
    together: bool = False

    def load(self) -> Check:
        module, _, function = self.check.partition(":")
        return cast(Check, getattr(importlib.import_module(module), function))


def _step(name: str, check: str, seconds: float = 60.0, together: bool = False) -> Step:
    return Step(name, f"{__package__}.{check}", seconds, together)


STEPS: tuple[Step, ...] = (
    _step("versions", "host:check_versions", 30),
    _step("host", "host:check_host", 30),
    _step("disk", "host:check_disk", 60),
    _step("cards", "cards:check_cards", 90),
    _step("peer access", "cards:check_peers", 90),
    _step("device", "cards:check_device", 60),
    _step("weights", "alone:check_weights"),
    _step("engine parity", "alone:check_parity", 120),
    _step("memory", "alone:check_memory", 90),
    _step("speed", "alone:check_speed", 120),
    _step("ranks", "together:check_ranks", 60, together=True),
    _step("collectives", "together:check_collectives", 90, together=True),
    _step("sharded update", "sharded:check_float32", 90, together=True),
    _step("bfloat16 update", "sharded:check_bfloat16", 90, together=True),
    _step("offload", "sharded:check_offload", 90, together=True),
    _step("weights gathered", "sharded:check_gathering", 90, together=True),
    _step("parity of ranks", "alone:check_parity", 120, together=True),
    _step("memory of a rank", "alone:check_memory", 90, together=True),
    _step("checkpoint", "sharded:check_checkpoint", 90, together=True),
    _step("weights by file", "transfer:check_files", 300),
    _step("weights by nccl", "transfer:check_broadcast", 300),
    _step("weights by ipc", "transfer:check_shared_memory", 300),
    _step("learning", "alone:check_learning", 240),
)


def steps_for(processes: int, learn: bool) -> list[Step]:
    """Those of a machine with so many ranks; of one process, none that several take together."""
    several = processes > 1
    wanted = [step for step in STEPS if several or not (step.together or ".transfer:" in step.check)]
    return [step for step in wanted if learn or step.name != "learning"]
