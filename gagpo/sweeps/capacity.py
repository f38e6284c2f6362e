"""How many runs of a sweep a machine can hold at once: by cores, memory and GPUs, from the estimates of ``plan``."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gagpo.base.cores import available_cores
from gagpo.base.errors import GagpoError
from gagpo.base.interpreter import command
from gagpo.base.memory import available_memory
from gagpo.settings import RunSettings, SettingsError

if TYPE_CHECKING:
    from gagpo.planning.plan import Guess

USABLE = 0.9  # fraction of the free host memory: environments and the file cache need some
GPU_CORES = 4  # of a run on a GPU with threads=0: the trainer, the tokenizer and environments
SECONDS = 120.0  # for another process to import torch and find the GPUs
VISIBLE = "CUDA_VISIBLE_DEVICES"

_FREE = (
    "import json, torch; print(json.dumps([torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]))"
)


@dataclass(frozen=True)
class Need:
    """What a run takes while it runs.

    cores: torch threads of all of its processes.
    memory: bytes in host memory; None if unknown.
    gpus: number of GPUs.
    gpu_memory: bytes on each of them.
    gpu: the number of a certain GPU (``cuda:1``); None for any.
    why: why the memory is unknown.
    """

    cores: int
    memory: float | None = 0.0
    gpus: int = 0
    gpu_memory: float = 0.0
    gpu: int | None = None
    why: str = ""


@dataclass(frozen=True)
class Share:
    """What a run was given. gpus: their numbers."""

    need: Need
    gpus: tuple[int, ...] = ()


@dataclass
class Capacity:
    """What is free.

    cores: that this process may use.
    memory: bytes of host memory that runs may take.
    gpus: free bytes of each GPU.
    jobs: maximum number of runs at once; None for as many as cores and memory allow. If it is set, cores do not limit
        the runs further, as more threads than cores are slow but possible; memory still does.
    """

    cores: int
    memory: float
    gpus: list[float] = field(default_factory=list)
    jobs: int | None = None
    shares: list[Share] = field(default_factory=list)

    def take(self, need: Need) -> Share | None:
        """The share of another run; None if it must wait.

        A run that fits nowhere gets its share when nothing else runs: the estimate may be too high.
        """
        if not self.shares:
            return self._give(need, self._freest(need))
        if self.jobs is not None and len(self.shares) >= self.jobs:
            return None
        if need.memory is None and self.jobs is None:  # unknown, so it runs alone unless the user said how many
            return None
        if any(share.need.memory is None for share in self.shares) and self.jobs is None:
            return None
        if self.jobs is None and sum(share.need.cores for share in self.shares) + need.cores > self.cores:
            return None
        if sum(share.need.memory or 0.0 for share in self.shares) + (need.memory or 0.0) > self.memory:
            return None
        gpus = self._freest(need)
        if any(self._free(gpu) < need.gpu_memory and self._free(gpu) < self.gpus[gpu] for gpu in gpus):
            return None
        return self._give(need, gpus)

    def give_back(self, share: Share) -> None:
        """A run has ended."""
        self.shares.remove(share)

    def variables(self, share: Share) -> dict[str, str]:
        """Environment variables that show a run only its GPUs; empty where there is no choice."""
        if not share.gpus or share.need.gpu is not None or len(self.gpus) < 2:
            return {}
        names = os.environ.get(VISIBLE, "").split(",") if os.environ.get(VISIBLE) else []
        visible = [names[gpu].strip() if gpu < len(names) else str(gpu) for gpu in share.gpus]
        return {VISIBLE: ",".join(visible)}

    def _give(self, need: Need, gpus: Sequence[int]) -> Share:
        share = Share(need, tuple(gpus))
        self.shares.append(share)
        return share

    def _freest(self, need: Need) -> list[int]:
        """The GPUs with the most free memory, as many as the run needs."""
        if need.gpu is not None:
            return [need.gpu] if need.gpu < len(self.gpus) else []
        return sorted(range(len(self.gpus)), key=lambda gpu: (-self._free(gpu), gpu))[: need.gpus]

    def _free(self, gpu: int) -> float:
        return self.gpus[gpu] - sum(share.need.gpu_memory for share in self.shares if gpu in share.gpus)


def capacity_here(settings: Sequence[RunSettings], jobs: int | None) -> Capacity:
    """This machine. settings: of the runs; GPUs are looked for only if one of them uses them.

    Raises:
        SettingsError: a run needs a GPU, and there is none.
    """
    uses_gpu = any(run_settings.device.startswith("cuda") for run_settings in settings)
    gpus = _free_gpu_memory() if uses_gpu else []
    if uses_gpu and not gpus:
        raise SettingsError("device 'cuda' cannot be used here (torch finds no GPU)", advice="set device=cpu")
    return Capacity(available_cores(), USABLE * available_memory(), gpus, jobs)


def _free_gpu_memory() -> list[float]:
    """Usable bytes of every GPU, found by another process: this one must not hold a context on the GPUs."""
    from gagpo.planning.fitting import FRAGMENTS

    with suppress(OSError, subprocess.SubprocessError, ValueError, TypeError):
        done = subprocess.run(command("-c", _FREE), capture_output=True, text=True, timeout=SECONDS, check=True)
        return [(1 - FRAGMENTS) * float(free) for free in json.loads(done.stdout.strip().splitlines()[-1])]
    return []


def threads_of(settings: RunSettings, capacity: Capacity) -> int:
    """Torch threads of a run: as set, else its part of the cores."""
    if settings.threads:
        return settings.threads
    if capacity.jobs is not None:
        return max(1, capacity.cores // capacity.jobs)
    return min(GPU_CORES, capacity.cores) if settings.device != "cpu" else capacity.cores


class Estimator:
    """Estimates what runs need. What they share is computed once: an expert's episode takes seconds."""

    def __init__(self, capacity: Capacity):
        self.capacity = capacity
        self._needs: dict[str, Need] = {}
        self._guesses: dict[str, Guess] = {}

    def need(self, settings: RunSettings) -> Need:
        """What a run takes; its memory is None where the model or the environment's data is not here."""
        key = settings.model_dump_json(exclude={"name", "seed"})
        if key not in self._needs:
            self._needs[key] = self._estimate(settings)
        return self._needs[key]

    def _estimate(self, settings: RunSettings) -> Need:
        from gagpo.planning.fitting import CONTEXT
        from gagpo.planning.plan import plan, shape_of

        cores = threads_of(settings, self.capacity) * settings.processes
        on_gpu = settings.device.startswith("cuda")
        number = settings.device.partition(":")[2]
        gpus = settings.processes if on_gpu else 0
        gpu = int(number) if number else None
        try:
            gigabytes = self.capacity.gpus[gpu or 0] / 1e9 if on_gpu and self.capacity.gpus else None
            estimate = plan(settings, self._guess(settings), shape_of(settings), gigabytes)
        except (GagpoError, OSError) as error:
            return Need(cores, None, gpus, 0.0, gpu, str(error))
        peak = estimate.peak()[0]
        if on_gpu:
            return Need(cores, estimate.on_host() * settings.processes, gpus, peak + CONTEXT, gpu)
        if settings.device != "cpu":  # other accelerators do not report what is free: one run at a time
            return Need(cores, None, why=f"the free memory of {settings.device} is not known")
        return Need(cores, peak * settings.processes)

    def _guess(self, settings: RunSettings) -> Guess:
        """The length of prompts, which depends on model and environments alone."""
        from gagpo.planning.plan import guess_of

        key = settings.model_dump_json(include={"model", "sft", "environment", "environments", "context"})
        if key not in self._guesses:
            self._guesses[key] = guess_of(settings)
        return self._guesses[key]


def at_once(capacity: Capacity, needs: Sequence[Need]) -> int:
    """How many of the runs start together."""
    trial = Capacity(capacity.cores, capacity.memory, capacity.gpus, capacity.jobs)
    return len([need for need in needs if trial.take(need)])
