"""The commands ``plan``, ``profile`` and ``doctor``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli.options import Config, Json, Overrides, print_json, print_table, say

if TYPE_CHECKING:
    from gagpo.base.tables import Table
    from gagpo.model.shape import Shape
    from gagpo.planning.fitting import MemoryVerdict
    from gagpo.planning.plan import ClusterPlan, Guess, MemoryPlan
    from gagpo.settings import RunSettings


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file to ``app``."""
    app.command()(plan)
    app.command()(profile)
    app.command()(doctor)


CLUSTER_CONFIG = "alfworld-8x80gb"  # of a plan that names no config


def plan(
    config: Annotated[str | None, typer.Argument(help="A settings file (YAML), or the name of a shipped one.")] = None,
    overrides: Overrides = None,
    gpu_memory: Annotated[
        list[float] | None,
        typer.Option(min=0.1, help="Memory of a GPU in GB; repeat for several. By default this machine's."),
    ] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each machine, one rank on each; by default `processes`.")
    ] = None,
    gpu: Annotated[
        str, typer.Option(help="Whose stated rates give the time of an update: a100, h100 or l40s.")
    ] = "h100",
    run: Annotated[Path | None, typer.Option(help="Take turns, tokens and speed from this run.")] = None,
    as_json: Json = False,
) -> None:
    """Estimate the memory, tokens, traffic, hours and disk space of a run without loading a model."""
    from gagpo.settings.machine import require_environments

    settings, cluster_size = _plan_settings(config, overrides or [], nodes, gpus)
    require_environments(settings)
    # torch is slow to import, so settings are checked first
    from gagpo.planning.agreement import require_room_for_prompts, require_trainable
    from gagpo.planning.fitting import memory_here
    from gagpo.planning.plan import cluster_plan, guess_of, measured_guess, shape_of
    from gagpo.planning.plan import plan as make_plan
    from gagpo.planning.rates import rates_of
    from gagpo.planning.traffic import Cluster
    from gagpo.runs.run_folder import RunFolder

    rates = rates_of(gpu)
    require_trainable(settings)
    shape = shape_of(settings)
    settings, formats = _with_formats(settings, shape.width)
    require_room_for_prompts(settings, shape)
    guess = guess_of(settings) if run is None else measured_guess(RunFolder.open(run).metrics())
    cluster = Cluster(*cluster_size)
    here = memory_here(settings.device)
    if here is None and gpus:
        here = rates.gigabytes
    memories = gpu_memory or ([here] if here else [])
    judged = [_judged(settings, guess, memory, shape, cluster.machines) for memory in memories]
    settings = judged[0][0] if judged else settings
    memory_plan = make_plan(settings, guess, shape, memories[0] if memories else None, cluster.machines)
    cluster_result = cluster_plan(settings, memory_plan, cluster, rates) if settings.device != "cpu" else None
    print_table(_table(settings.model, memory_plan))
    say(formats, *_lines(memory_plan, settings.training.iterations, cluster.gpus))
    if cluster_result is not None:
        print_table(_traffic_table(cluster_result))
        say(*_time_lines(cluster_result))
    for chosen, verdict in judged:
        _say_verdict(verdict, chosen, guess, shape, cluster.machines)
    if not judged:
        say(f"device {settings.device} was not found: give a GPU's memory, for example --gpu-memory 80")
    if as_json:
        record = {**memory_plan.record(), "gpus": [{**vars(verdict), "fits": verdict.fits} for _, verdict in judged]}
        print_json(record | (cluster_result.record() if cluster_result else {}))
    if judged and not any(verdict.fits for _, verdict in judged):
        raise typer.Exit(1)


def _judged(
    settings: RunSettings, guess: Guess, gigabytes: float, shape: Shape, machines: int
) -> tuple[RunSettings, MemoryVerdict]:
    """The settings with what a run on such GPUs would choose, and whether it fits them."""
    from gagpo.planning.fitting import judge, with_chosen_unsharded

    settings = with_chosen_unsharded(settings, guess, gigabytes, shape, machines)
    return settings, judge(settings, guess, gigabytes, shape, machines)


def _say_verdict(verdict: MemoryVerdict, settings: RunSettings, guess: Guess, shape: Shape, machines: int) -> None:
    """Whether the run fits a GPU, and the ``training.unsharded`` that moves the fewest bytes and fits too."""
    from gagpo.planning.fitting import fastest_unsharded

    memory = f"{verdict.gigabytes:.0f} GB"
    if settings.processes == 1:
        return say(f"{memory}: {verdict.advice}")
    say(f"{memory}: {verdict.advice}; training.unsharded={settings.training.unsharded}")
    fastest = fastest_unsharded(settings, guess, verdict.gigabytes, shape, machines)
    if fastest is not None and fastest[0] != settings.training.unsharded:
        say(f"{memory}: training.unsharded={fastest[0]} moves fewer bytes and {fastest[1].advice}")
    return None


def _with_formats(settings: RunSettings, width: int) -> tuple[RunSettings, str]:
    """The settings in the formats of the machine, and a line that names them. width: the model's hidden size."""
    from gagpo.model.chosen_format import formats_for
    from gagpo.settings.formats import formats_line, is_open
    from gagpo.settings.machine import with_machine_formats

    if not is_open(settings):
        return settings, f"number format: {formats_line(settings)}"
    return with_machine_formats(settings, width), f"number format: {formats_for(settings.device, width)}"


def _plan_settings(
    config: str | None, overrides: list[str], nodes: int, gpus: int | None
) -> tuple[RunSettings, tuple[int, int]]:
    """The settings as training resolves them, with one process for each GPU; and the machines and their GPUs.

    A first argument that is an override is one: ``gagpo plan --nodes 2 --gpus 8 model=...``.
    """
    from gagpo.settings import SettingsError
    from gagpo.training.launch import resolved_settings

    if config is not None and "=" in config:
        overrides = [config, *overrides]
        config = None
    if config is None:
        if gpus is None:
            raise SettingsError("name a settings file or a shipped config (`gagpo list` shows them)")
        config = CLUSTER_CONFIG
    settings = resolved_settings(config, overrides)
    if gpus is None and settings.processes % nodes:
        raise SettingsError(
            f"processes={settings.processes} cannot be divided over {nodes} nodes",
            key="processes",
            advice="name --gpus",
        )
    each = gpus or settings.processes // nodes
    return settings.model_copy(update={"processes": nodes * each}), (nodes, each)


def _table(model: str, memory_plan: MemoryPlan) -> Table:
    from gagpo.base.tables import Table
    from gagpo.planning.memory import GB, PHASES

    on_device = [segment for segment in memory_plan.parts if not segment.host]
    digits = 2 if memory_plan.peak()[0] > GB else 4
    title = f"{model}: {memory_plan.shape.parameters / 1e6:,.1f} M parameters"
    header = ["part", *(f"{phase}, GB" for phase in PHASES), "what"]
    rows = [
        [
            segment.name,
            *(f"{segment.bytes / GB:.{digits}f}" if phase in segment.phases else "" for phase in PHASES),
            segment.note,
        ]
        for segment in on_device
    ]
    sums = [sum(segment.bytes for segment in on_device if phase in segment.phases) for phase in PHASES]
    rows.append(["total", *(f"{total / GB:.{digits}f}" for total in sums), ""])
    return Table(header, rows, title, words=(0, len(header) - 1), total=True)


def _lines(memory_plan: MemoryPlan, iterations: int, processes: int) -> list[str]:
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
        host_parts = [host_segments for host_segments in memory_plan.parts if host_segments.host]
        names = ", ".join(
            f"{host_segments.name} {host_segments.bytes / GB:.3g}{' once' if host_segments.per_machine else ''}"
            for host_segments in host_parts
        )
        ranks = "1 process" if processes == 1 else f"{processes} processes"
        lines.append(f"host: {memory_plan.on_host(processes) / GB:.3g} GB of a machine's memory for {ranks}: {names}")
    if memory_plan.hours is None:
        return [*lines, "hours: unknown without --run"]
    return [*lines, f"hours: {memory_plan.hours:,.3g} for {iterations} iterations"]


def _traffic_table(cluster_plan: ClusterPlan) -> Table:
    from gagpo.base.tables import Table
    from gagpo.planning.memory import GB

    traffic = cluster_plan.traffic
    cluster = traffic.cluster
    several = cluster.machines > 1
    flat = several and not traffic.replicated  # weights of copies on each machine do not cross the network

    def across(gradients: float) -> float:
        return traffic.replicated * cluster.gpus or gradients * flat

    def row(name: str, link: float, network: float, file: float = 0.0) -> list[str]:
        return [name, *(f"{number / GB:,.2f}" if number else "" for number in (link, network, file))]

    rows = [
        row("weights for the passes", traffic.gathered, traffic.gathered * flat),
        row("gradients", traffic.reduced + traffic.replicated, across(traffic.reduced)),
        row("weights for the engine", traffic.policy, traffic.policy * flat, traffic.files + traffic.read),
        row("episodes", 0.0, traffic.episodes * cluster.gpus * several, 0.0 if several else traffic.episodes),
    ]
    title = f"GB of an iteration: {cluster.machines} x {cluster.gpus} GPUs"
    return Table(["", "a GPU receives", "a machine receives", "host memory"], rows, title, words=(0,))


def _time_lines(cluster_plan: ClusterPlan) -> list[str]:
    from gagpo.base.tables import duration
    from gagpo.planning.rates import ARITHMETIC, MEMORY

    time, rates = cluster_plan.time, cluster_plan.rates
    return [
        f"time of an iteration: {duration(time.total)} by the stated rates of {rates.name}: decoding "
        f"{time.decoding:.3g} s, prompts {time.prompts:.3g} s, update {time.update:.3g} s (arithmetic "
        f"{time.arithmetic:.3g}, links {time.links:.3g}, network {time.network:.3g}), weights to the engine "
        f"{time.weights:.3g} s, episodes {time.episodes:.2g} s",
        f"bound by: {time.bottleneck()}",
        f"rates: {rates.flops / 1e12:.0f} TFLOP/s x {ARITHMETIC}, memory {rates.memory / 1e12:.3g} TB/s x {MEMORY}, "
        f"links {rates.link / 1e9:.0f} GB/s, network {rates.network / 1e9:.0f} GB/s of a machine; no environments",
    ]


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
    engine: Annotated[str, typer.Option(help="The engine to check, as engine.name of a config.")] = "transformers",
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
        command = ["--engine", engine, "--dtype", dtype, "--processes", str(processes), "--runs", str(runs)]
        flags = [*(["--device", device] if device else []), *(["--json"] if as_json else [])]
        launch.run(processes, ["doctor", *command, *flags])
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
        for outcome, names in (("warning", warnings), ("failed", failed)):
            if names:
                say(f"{outcome}: {', '.join(names)}")
        if not failed:
            say("All checks passed.")
    if ranks.first and as_json:
        record = [vars(finding) for finding in findings]
        print_json({"ok": not failed, "failed": failed, "warnings": warnings, "findings": record})
    if failed:
        raise typer.Exit(1)
