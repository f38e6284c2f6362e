"""Steps about what a run needs of a machine beside its cards: packages, main memory, shared memory, files, disk."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import tempfile
import time
from pathlib import Path

import torch

from gagpo.planning.doctor.machine import DoctorFinding, Machine, judged
from gagpo.planning.memory import GB
from gagpo.runs.run_folder import versions

DRIVER = Path("/proc/driver/nvidia/version")
SHARED = Path("/dev/shm")
MEMINFO = Path("/proc/meminfo")
GROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
HOST_GB = {True: 16.0, False: 1.0}
"""GB of main memory that a process wants, with a card and without: a copy of the model, checkpoints, episodes."""

SHARED_GB = 1.0
FILES = 4096
DISK_GB, DISK_MB_PER_SECOND = 20.0, 100.0
WRITTEN = 2**28


def check_versions(machine: Machine) -> DoctorFinding:
    """Of Python, of the driver and of the packages that results depend on."""
    known: dict[str, object] = {"python": platform.python_version(), **versions()}
    if driver := driver_version():
        known["driver"] = driver
    if torch.version.cuda:
        known["cuda"] = torch.version.cuda
        known["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    wanted = ("python", "gagpo", "torch", "cuda", "nccl", "driver", "transformers", "vllm", "bitsandbytes")
    summary = ", ".join(f"{name} {known[name]}" for name in wanted if name in known)
    if machine.on_card and not driver:
        return DoctorFinding(
            "versions", "warning", f"{summary}; {DRIVER} does not name a driver", known, "in a container that is usual"
        )
    return DoctorFinding("versions", "ok", summary, known)


def driver_version() -> str | None:
    """NVIDIA's kernel module as the kernel names it; None where there is none."""
    try:
        found = re.search(r"\s(\d+\.\d+(?:\.\d+)*)\s", DRIVER.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None
    return found[1] if found else None


def check_host(machine: Machine) -> DoctorFinding:
    """Main memory within the limit of this container, shared memory, open files, cores."""
    free, shared, files = host_memory() / GB, shared_memory() / GB, resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    cores, wanted = len(os.sched_getaffinity(0)), HOST_GB[machine.on_card] * machine.processes
    values = {"free_gb": free, "shared_gb": shared, "files": files, "cores": cores}
    many = "no limit of" if files == resource.RLIM_INFINITY else f"{files:,}"
    summary = f"{free:.1f} GB of main memory free, {shared:.1f} GB of shared memory, {many} open files, {cores} cores"
    problems = []
    if free < wanted:
        problems.append(f"{machine.processes} processes want {wanted:.0f} GB: raise the container's limit of memory")
    if machine.processes > 1 and shared < SHARED_GB:
        problems.append("NCCL and vLLM need shared memory: docker run --shm-size=16g, or --ipc=host")
    if 0 <= files < FILES:
        problems.append(f"raise the limit of open files: ulimit -n {max(65536, FILES)}")
    if cores < machine.processes:
        problems.append(f"{cores} cores for {machine.processes} processes: environments and ranks take turns")
    return DoctorFinding("host", "warning" if problems else "ok", summary, values, "; ".join(problems))


def host_memory() -> float:
    """Bytes of main memory that this process may still take: of the machine, or of its control group."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", MEMINFO.read_text(encoding="ascii"), re.MULTILINE)
    free = float(found[1]) * 1024 if found else float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES"))
    for path in GROUP_LIMITS:
        try:
            free = min(free, float(path.read_text(encoding="ascii")))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return free


def shared_memory() -> float:
    """Free bytes of shared memory; 0 where there is none."""
    return float(shutil.disk_usage(SHARED).free) if SHARED.is_dir() else 0.0


def check_disk(machine: Machine) -> DoctorFinding:
    """Room and speed of the disk that run folders lie on; a file is written there, flushed, read and removed."""
    place = machine.runs.absolute()
    while not place.is_dir():
        place = place.parent
    room = shutil.disk_usage(place).free / GB
    size = WRITTEN if machine.on_card else WRITTEN // 8
    block = os.urandom(2**20)
    with tempfile.NamedTemporaryFile(dir=place, prefix=".gagpo-doctor-") as file:
        begun = time.perf_counter()
        for _ in range(size // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = size / (time.perf_counter() - begun) / 1e6
        file.seek(0)
        begun, same = time.perf_counter(), True
        while part := file.read(len(block)):
            same = same and part == block
        read = size / (time.perf_counter() - begun) / 1e6
    values = {"folder": str(machine.runs), "free_gb": room, "write_mb_per_second": written, "read_mb_per_second": read}
    summary = f"{room:.0f} GB free for {machine.runs}, {written:,.0f} MB/s written, {read:,.0f} MB/s read (cached)"
    if not same:
        return judged("disk", False, f"what was written to {place} is read back changed", values, "replace the disk")
    problems = []
    if room < DISK_GB:
        problems.append("a checkpoint takes 12 bytes a parameter, and two are kept: name a larger disk with --runs")
    if written < DISK_MB_PER_SECOND:
        problems.append("checkpoints and weights through files will be slow: name a faster disk with --runs")
    return DoctorFinding("disk", "warning" if problems else "ok", summary, values, "; ".join(problems))
