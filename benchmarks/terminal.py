"""Resets and commands per second of gagpo/Terminal-v0 on one core, next to a new sandbox or container each time.

    python -m benchmarks.terminal [--resets 300] [--commands 1000] [--container "podman run ..."] [--sandboxes 64]

CPU seconds count, of this process and of all below the sandbox, because other work shares the machine. ``warm`` uses
one sandbox again, as the environment does; ``new`` makes one for each reset. ``--container``, which may be repeated,
is a command line that runs ``true`` in a new container, such as ``podman run --rm --network=none IMAGE true``. Its CPU
time is that of the client only and not of the engine's other processes, so wall time is the fair number there.
"""

from __future__ import annotations

import argparse
import os
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing

from gagpo.base.tables import Table, text_width
from gagpo.envs.terminal.backends.bubblewrap import BubblewrapSandbox
from gagpo.envs.terminal.exercise import prepared_tree
from gagpo.envs.terminal.generate import exercise, generate_tasks

CONTAINERS = 10  # started to measure one
CONTAINER_SECONDS = 60  # that starting a container may take

COMMANDS = {"a builtin (echo)": "echo hi", "a change (echo > file)": "echo hi > file", "a program (ls)": "ls"}


def descendants(root: int) -> list[int]:
    """The processes below ``root``, itself included."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
    selected = {root}
    while more := {process for process, parent in parents.items() if parent in selected} - selected:
        selected |= more
    return sorted(selected)


def cpu_seconds(root: int) -> float:
    """CPU time of the processes below ``root``, those that they waited for included, and of this process."""
    ticks = 0
    for process in descendants(root):
        try:
            with open(f"/proc/{process}/stat") as file:
                ticks += sum(map(int, file.read().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK") + sum(os.times()[:2])


def resident_mebibytes(root: int) -> float:
    """Memory of the processes below ``root``; shared pages count in proportion."""
    kibibytes = 0
    for process in descendants(root):
        with open(f"/proc/{process}/smaps_rollup") as file:
            kibibytes += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return kibibytes / 1024


def measured(name: str, count: int, action: Callable[[int], object], cpu: Callable[[], float]) -> list[str]:
    """A row of the table: what ``action`` does in a second of CPU time, and of time."""
    begin = (time.perf_counter(), cpu())
    for number in range(count):
        action(number)
    wall = time.perf_counter() - begin[0]
    used = cpu() - begin[1]
    return [name, f"{count / used:,.0f}", f"{count / wall:,.0f}", f"{1000 * used / count:.2f}"]


def of_sandbox(resets: int, commands: int) -> list[list[str]]:
    tasks = generate_tasks("train", 60, ("set-json", "move-by-ending", "count-lines"), (1, 2, 3), 0).ids
    rows = []
    with closing(BubblewrapSandbox()) as sandbox:
        trees = [prepared_tree(sandbox, exercise(task)) for task in tasks]
        sandbox.start(trees[0])
        root = sandbox.process
        rows.append(
            measured("reset, warm", resets, lambda i: sandbox.start(trees[i % len(trees)]), lambda: cpu_seconds(root))
        )
        for name, command in COMMANDS.items():
            rows.append(measured(name, commands, lambda _, c=command: sandbox.run(c, 10.0), lambda: cpu_seconds(root)))

    def new(number: int) -> None:
        with closing(BubblewrapSandbox()) as once:
            once.start(trees[number % len(trees)])

    rows.append(measured("reset, new", max(1, resets // 20), new, _with_children))
    return rows


def _with_children() -> float:
    """CPU time of this process and of the children that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def of_container(line: str) -> list[str]:
    """A row for a command line that starts a container; empty, with a line on standard error, if it starts none."""
    command = shlex.split(line)

    def run(_: int) -> None:
        subprocess.run(command, capture_output=True, check=True, text=True, timeout=CONTAINER_SECONDS)

    try:
        run(0)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{line}: {error}", file=sys.stderr)
    except subprocess.CalledProcessError as error:
        print(f"{line}: {error.stderr.strip()}", file=sys.stderr)
    else:
        return measured(command[0], CONTAINERS, run, _with_children)
    return [command[0], "", "", ""]


def memory_of(count: int) -> str:
    """Memory of ``count`` sandboxes at once, each with an episode."""
    sandboxes = [BubblewrapSandbox() for _ in range(count)]
    try:
        for sandbox in sandboxes:
            sandbox.start({})
        total = sum(resident_mebibytes(sandbox.process) for sandbox in sandboxes)
        return f"{count} sandboxes with an episode each: {total:.0f} MiB"
    finally:
        for sandbox in sandboxes:
            sandbox.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the sandboxes of gagpo/Terminal-v0.")
    parser.add_argument("--resets", type=int, default=300)
    parser.add_argument("--commands", type=int, default=1000)
    parser.add_argument("--container", action="append", default=[], help="a command line to compare with")
    parser.add_argument("--sandboxes", type=int, default=64)
    options = parser.parse_args()
    rows = of_sandbox(options.resets, options.commands)
    rows += [of_container(line) for line in options.container]
    heads = ["", "per CPU second", "per second", "CPU ms each"]
    print(*Table(heads, rows, words=(0,)).lines(text_width()), sep="\n")
    if options.sandboxes:
        print(memory_of(options.sandboxes))


if __name__ == "__main__":
    main()
