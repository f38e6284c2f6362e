"""``gagpo train`` with several values for an override: the runs of all combinations."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from gagpo.cli.options import print_json, print_table, say

if TYPE_CHECKING:
    from gagpo.cli.train import TrainRequest
    from gagpo.sweeps.capacity import Capacity, Need
    from gagpo.sweeps.grid import Sweep
    from gagpo.sweeps.status import RunStatus


def train_sweep(config: str, overrides: Sequence[str], request: TrainRequest, quiet: bool, as_json: bool) -> None:
    """Run every combination of values, several at once, and compare them.

    A run that another start of this command has begun is resumed, and a finished one stays.
    """
    from gagpo.base.rank import started_as_rank
    from gagpo.settings import SettingsError
    from gagpo.sweeps.display import SweepDisplay, counts
    from gagpo.sweeps.grid import make_sweep
    from gagpo.sweeps.processes import Runner

    if started_as_rank():
        raise SettingsError("a sweep starts the processes of its runs itself", advice="run it without torchrun")
    sweep = make_sweep(config, overrides, request.runs)
    _require_startable(sweep)
    with _alone(sweep.folder):
        _make_models(sweep, quiet)
        statuses = _statuses(sweep)
        capacity, needs = _estimate(statuses, request.jobs)
        say(*_opening(sweep, statuses, capacity, needs))
        display = SweepDisplay(statuses, say, quiet)
        runner = Runner(config, statuses, needs, capacity, display.changed, display.watch)
        with display.showing():
            runner.run()
        say(counts(statuses))
        record = _conclude(sweep, statuses, runner.stopped_by)
    if as_json:
        print_json({"runs": [status.record() for status in statuses], **record})
    if runner.stopped_by:
        _raise_stopped(runner.stopped_by)
    if any(status.state != "finished" for status in statuses):
        raise typer.Exit(1)


def list_runs(config: str, overrides: Sequence[str], runs: Path, as_json: bool) -> None:
    """Print the runs that a command would start, resume or skip, and check them as their start does; change nothing."""
    from gagpo.base.tables import Table
    from gagpo.sweeps.grid import make_sweep

    sweep = make_sweep(config, overrides, runs)
    _require_startable(sweep)
    _require_environments(sweep)
    statuses = _statuses(sweep)
    rows = []
    for status in statuses:
        state = "new"
        if status.changes is not None:
            state = "to resume" if status.state == "waiting" else status.state
        swept = [override for override in status.run.overrides if not override.startswith("name=")]
        rows.append([status.run.name, state, f"{status.iteration}/{status.iterations}", " ".join(swept)])
    table = Table(["run", "state", "iterations", "overrides"], rows, words=(0, 1, 3))
    print_table(table)
    if as_json:
        print_json([status.record() for status in statuses])


def _require_startable(sweep: Sweep) -> None:
    """Raise GagpoError if this machine cannot start one of the runs, before any of them starts."""
    from gagpo.settings import machine
    from gagpo.training.launch import require_model

    for run in sweep.runs:
        # Not the device: this process would hold a context on the GPU as long as the sweep lasts.
        machine.require_machine(run.settings.model_copy(update={"device": "cpu"}))
        if run.settings.sft is None:
            require_model(run.settings)


def _require_environments(sweep: Sweep) -> None:
    """Raise GagpoError if an environment of the runs cannot be made or lacks a split; every distinct one is made once.

    Constructors check what their arguments name, such as functions and files. Tasks are left out: making them may take
    minutes and write to the disk.
    """
    from gagpo.agents.setup import make_env
    from gagpo.envs.tasks import unknown_split

    environments = {
        f"{env.environment.model_dump_json()} {env.evaluation.splits}": env
        for run in sweep.runs
        for env in run.settings.all_environments
    }
    for env in environments.values():
        environment = make_env(env.environment.id, env.environment.kwargs)
        splits = getattr(environment, "splits", ())
        for split in (env.environment.split, *env.evaluation.splits):
            if splits and split not in splits:
                raise unknown_split(type(environment).__name__, split, splits)
        if hasattr(environment, "require_functions"):
            environment.require_functions()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep another start of the same sweep out."""
    from filelock import FileLock, Timeout

    from gagpo.settings import SettingsError

    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / ".lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise SettingsError(f"another process runs the sweep in {folder}", advice="wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


def _make_models(sweep: Sweep, quiet: bool) -> None:
    """Make the models that SFT has to make, one after the other: runs that begin together would all do it."""
    from gagpo.cli.missing_model import make_missing_model

    for run in sweep.runs:
        make_missing_model(sweep.config, list(run.overrides), quiet)


def _statuses(sweep: Sweep) -> list[RunStatus]:
    from gagpo.sweeps.status import status_of

    return [status_of(run, sweep.folder / "logs") for run in sweep.runs]


def _estimate(statuses: Sequence[RunStatus], jobs: int | None) -> tuple[Capacity, list[Need]]:
    """What the machine has, and what every run needs."""
    from gagpo.sweeps.capacity import Estimator, capacity_here

    capacity = capacity_here([status.run.settings for status in statuses], jobs)
    estimator = Estimator(capacity)
    return capacity, [estimator.need(status.run.settings) for status in statuses]


def _opening(sweep: Sweep, statuses: Sequence[RunStatus], capacity: Capacity, needs: Sequence[Need]) -> list[str]:
    """What the sweep does, in a few lines."""
    from gagpo.sweeps.capacity import at_once
    from gagpo.sweeps.display import counts

    waiting = [need for status, need in zip(statuses, needs, strict=True) if status.state == "waiting"]
    lines = [counts(statuses)]
    if waiting:
        largest = max((need.memory or 0.0) for need in waiting)
        memory = f"{largest / 1e9:.1f} of {capacity.memory / 1e9:.1f} GB each" if largest else "memory unknown"
        lines.append(f"at once: {at_once(capacity, waiting)} ({capacity.cores} cores; {memory})")
    if reasons := sorted({need.why for need in waiting if need.why}):
        lines.append(f"the memory of a run is unknown, so set --jobs to run several at once: {reasons[0]}")
    if any("tensorboard" in status.run.settings.trackers for status in statuses):
        lines.append(f"TensorBoard: tensorboard --logdir {shlex.quote(str(sweep.folder.parent))}")
    lines.append(f"logs: {sweep.folder / 'logs'}")
    return lines


def _conclude(sweep: Sweep, statuses: Sequence[RunStatus], stopped_by: int) -> dict[str, object]:
    """Print failures, and the report of what is finished; returns the report as JSON-ready values."""
    from gagpo.base.errors import GagpoError
    from gagpo.base.tables import text_width
    from gagpo.sweeps.report import make_report, write_missing_reports, write_report

    for status in statuses:
        if status.state == "failed":
            say(f"{status.run.name} failed: {status.reason}; log: {status.log}")
    if stopped_by:
        return {}
    write_missing_reports(statuses)
    try:
        report = make_report(statuses)
    except GagpoError as error:  # such as another task set in every run: each has its own report
        say(f"the runs have no common report: {error}")
        return {}
    if report is None:
        return {}
    say("", *report.lines(text_width(most=100), text_width()))
    paths = write_report(sweep, statuses, report)
    say("", *(f"{path.stem}: {path}" for path in paths))
    return report.record()


def _raise_stopped(number: int) -> None:
    """Say how to continue, and end as a program that was interrupted ends."""
    import signal

    from gagpo.base.errors import Interrupted, Terminated

    say(f"interrupted; continue with: {shlex.join(['gagpo', *sys.argv[1:]])}")
    if number == signal.SIGINT:
        raise Interrupted
    raise Terminated(128 + number)
