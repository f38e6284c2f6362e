"""The commands ``plan``, ``profile`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli.options import Config, Json, Overrides, print_json, print_table, say

if TYPE_CHECKING:
    from gagpo.base.tables import Table
    from gagpo.planning.plan import MemoryPlan


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command()(plan)
    app.command()(profile)
    app.command()(doctor)


def plan(
    config: Config,
    overrides: Overrides = None,
    gpu_memory: Annotated[
        list[float] | None,
        typer.Option(min=0.1, help="Memory of a GPU in GB; repeat for several. By default this machine's."),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="Take turns, tokens and speed from this run.")] = None,
    as_json: Json = False,
) -> None:
    """Estimate the memory, tokens, hours and disk space of a run without loading a model."""
    from gagpo.settings import load
    from gagpo.settings.machine import require_environments

    settings = load(config, overrides or [])
    require_environments(settings)
    from gagpo.planning.fitting import judge, memory_here  # torch: slow to import, so settings are checked first
    from gagpo.planning.plan import guess_of, measured_guess, shape_of
    from gagpo.planning.plan import plan as make_plan
    from gagpo.runs.run_folder import RunFolder

    shape = shape_of(settings)
    guess = guess_of(settings) if run is None else measured_guess(RunFolder.open(run).metrics())
    here = memory_here(settings.device)
    memories = gpu_memory or ([here] if here else [])
    memory_plan = make_plan(settings, guess, shape, memories[0] if memories else None)
    verdicts = [judge(settings, guess, memory, shape) for memory in memories]
    print_table(_table(settings.model, memory_plan))
    for line in _lines(memory_plan, settings.training.iterations):
        say(line)
    for verdict in verdicts:
        say(f"{verdict.gigabytes:.0f} GB: {verdict.advice}")
    if not verdicts:
        say(f"device {settings.device} was not found: give a GPU's memory, for example --gpu-memory 80")
    if as_json:
        print_json({**memory_plan.record(), "gpus": [{**vars(verdict), "fits": verdict.fits} for verdict in verdicts]})
    if verdicts and not any(verdict.fits for verdict in verdicts):
        raise typer.Exit(1)


def _table(model: str, memory_plan: MemoryPlan) -> Table:
    from gagpo.base.tables import Table
    from gagpo.planning.memory import GB, PHASES

    on_device = [part for part in memory_plan.parts if not part.host]
    digits = 2 if memory_plan.peak()[0] > GB else 4
    title = f"{model}: {memory_plan.shape.parameters / 1e6:,.1f} M parameters"
    header = ["part", *(f"{phase}, GB" for phase in PHASES), "what"]
    rows = [
        [part.name, *(f"{part.bytes / GB:.{digits}f}" if phase in part.phases else "" for phase in PHASES), part.note]
        for part in on_device
    ]
    sums = [sum(part.bytes for part in on_device if phase in part.phases) for phase in PHASES]
    rows.append(["total", *(f"{total / GB:.{digits}f}" for total in sums), ""])
    return Table(header, rows, title, words=(0, len(header) - 1), total=True)


def _lines(memory_plan: MemoryPlan, iterations: int) -> list[str]:
    from gagpo.planning.memory import GB

    tokens = memory_plan.tokens
    disk = memory_plan.disk
    lines = [
        f"tokens of an iteration: {tokens['guess']:,.0f} sampled (at most {tokens['most']:,.0f}), "
        f"{tokens['trained_on']:,.0f} read in training, {tokens['row']:,.0f} in a row",
        f"disk: {disk['most'] / GB:.3g} GB, checkpoints of {disk['checkpoint'] / GB:.3g} GB: {disk['keep']:.0f} kept"
        f"{', the best one' if disk['best'] else ''} and one being written",
    ]
    if memory_plan.on_host():
        names = ", ".join(part.name for part in memory_plan.parts if part.host)
        lines.append(f"host: {memory_plan.on_host() / GB:.3g} GB of its memory for each process: {names}")
    if memory_plan.hours is None:
        return [*lines, "hours: unknown without --run"]
    return [*lines, f"hours: {memory_plan.hours:,.3g} for {iterations} iterations"]


def profile(
    config: Config,
    overrides: Overrides = None,
    iterations: Annotated[int, typer.Option(min=1, help="Iterations to average over, after a first one.")] = 3,
    as_json: Json = False,
) -> None:
    """Train for a few iterations and print where their time goes; nothing is kept."""
    from gagpo.planning import profile as profiling
    from gagpo.settings import load

    settings = load(config, overrides or [])

    shares = profiling.profile(settings, iterations)
    rollout = settings.rollout
    episodes = f"{rollout.tasks} x {rollout.group_size} episodes"
    print_table(shares.table(f"{config}: {episodes}, mean of {iterations} iterations"))
    last = shares.metrics[-1]
    say(
        f"{last['tokens_per_second']:,.0f} response tokens per second; the update read "
        f"{last.get('train_tokens_read', 0.0):.0%} of the rows' tokens"
    )
    if as_json:
        print_json(shares.record())


def doctor(
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1; by default cuda if available.")] = "",
    engine: Annotated[str, typer.Option(help="The engine to check: transformers or vllm.")] = "transformers",
    dtype: Annotated[str, typer.Option(help="Number format to sample in: float32 or bfloat16.")] = "float32",
    processes: Annotated[int, typer.Option(min=1, help="Ranks to train with, one GPU each.")] = 1,
    runs: Annotated[Path, typer.Option(help="Folder for runs; its disk is checked.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Check that your machine gives correct results: memory, disk, GPUs, ranks, a training step, sampling."""
    from gagpo.agents.engines.registry import ENGINES
    from gagpo.distributed import launch
    from gagpo.model.dtypes import require_known
    from gagpo.settings.machine import require_device

    require_known(dtype)
    ENGINES.place(engine)
    require_device(device or "cpu")
    if launch.starts_ranks(processes):
        words = ["--engine", engine, "--dtype", dtype, "--processes", str(processes), "--runs", str(runs)]
        flags = [*(["--device", device] if device else []), *(["--json"] if as_json else [])]
        launch.run(processes, ["doctor", *words, *flags])
        return
    import torch

    from gagpo.distributed.ranks import joined
    from gagpo.planning.doctor import Machine, device_of, examine

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with joined() as ranks:
        if ranks.first:
            say(f"gagpo doctor --device {device} --processes {ranks.world_size} --engine {engine} --dtype {dtype}")
        torch.set_num_threads(1)  # the model is tiny, and other processes may use the cores
        machine = Machine(device_of(device, ranks), engine, dtype, runs, ranks)
        findings = examine(machine, lambda finding: say(*finding.lines()))
    failed = [finding.name for finding in findings if finding.verdict == "failed"]
    warnings = [finding.name for finding in findings if finding.verdict == "warning"]
    if ranks.first:
        for kind, names in (("warning", warnings), ("failed", failed)):
            if names:
                say(f"{kind}: {', '.join(names)}")
        if not failed:
            say("All checks passed.")
    if ranks.first and as_json:
        record = [vars(finding) for finding in findings]
        print_json({"ok": not failed, "failed": failed, "warnings": warnings, "findings": record})
    if failed:
        raise typer.Exit(1)
