"""The smaller commands: making games, playing, checking environments, benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gagpo.cli.options import Games, Json, Kwargs, Quiet, print_json, print_table, say, values

bench = typer.Typer(no_args_is_help=True, help="Measure environments, engines and credit.")


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(check)
    app.command()(games)
    app.command()(play)
    app.add_typer(bench, name="bench")


def check(
    env: Annotated[
        str,
        typer.Argument(
            help="Environment id, e.g. gagpo/ALFWorld-v0 or module:Name-v0, an OpenEnv server's URL, or docker://IMAGE."
        ),
    ],
    kwargs: Kwargs = None,
    episodes: Annotated[int, typer.Option(min=1, help="Tasks played in each check.")] = 8,
    as_json: Json = False,
) -> None:
    """Prove an environment: splits, exact resets, determinism, expert, garbage actions, and more."""
    from gagpo.envs.check.check import check as run
    from gagpo.envs.check.check import table
    from gagpo.envs.lookup import is_address, is_image
    from gagpo.envs.remote.world import checkable

    if is_address(env) or is_image(env):
        with checkable(env, values(kwargs)) as (world, arguments):
            findings = run(world, arguments, episodes=episodes)
    else:
        findings = run(env, values(kwargs), episodes=episodes)
    print_table(table(findings))
    broken = [finding.name for finding in findings if not finding.ok]
    if as_json:
        print_json({"ok": not broken, "findings": [vars(finding) for finding in findings]})
    if broken:
        raise typer.Exit(1)


def games(
    size: Annotated[str, typer.Option(help="Rooms: small, full, varied or alfred.")] = "small",
    seed: Annotated[int, typer.Option(help="Names the games for ever.")] = 0,
    train: Annotated[int | None, typer.Option(min=0, help="Games of the split train.")] = None,
    valid_seen: Annotated[int | None, typer.Option(min=0)] = None,
    valid_unseen: Annotated[int | None, typer.Option(min=0)] = None,
    folder: Annotated[Path | None, typer.Option(help="Where to; $GAGPO_DATA/alfworld/... by default.")] = None,
    engine: Annotated[str, typer.Option(help="The engine that proves each game: native or textworld.")] = "native",
    processes: Annotated[int, typer.Option(min=1)] = 2,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Generate ALFWorld games, each proved solvable in the engine; what exists is not made again."""
    from gagpo.base.progress import track
    from gagpo.envs.alfworld.games.generate import default_root, generate

    wanted = {"train": train, "valid_seen": valid_seen, "valid_unseen": valid_unseen}
    counts = {split: count for split, count in wanted.items() if count is not None}
    root = folder or default_root(size, seed)
    with track("games", 1, "games", quiet) as meter:
        made = generate(size, seed, counts, root=root, engine=engine, processes=processes, progress=meter.reach)
    say("\n".join(f"{split}: {len(found)} games" for split, found in made.items()))
    say(f"folder: {root}")
    if as_json:
        print_json({"folder": str(root), "games": {split: len(found) for split, found in made.items()}})


def play(
    what: Annotated[str, typer.Argument(help="webshop")],
    port: Annotated[int, typer.Option(min=0, max=65535)] = 3000,
    host: Annotated[str, typer.Option(help="Address to bind; others than loopback let everybody in.")] = "127.0.0.1",
    data: Annotated[Path | None, typer.Option(help="Folder with the original files.")] = None,
    products: Annotated[int, typer.Option(min=1, help="Size of a generated catalogue.")] = 1000,
) -> None:
    """Open an environment for people, in a browser."""
    if what != "webshop":
        from gagpo.base.errors import InvalidArgument

        raise InvalidArgument(f"only webshop can be played in a browser, not {what!r}")
    from gagpo.envs.webshop.web.site import play as serve

    serve(port=port, host=host, data=data, products=products)


@bench.command("env")
def bench_env(
    env: Annotated[str, typer.Option(help="Environment id.")] = "gagpo/ALFWorld-v0",
    kwargs: Kwargs = None,
    engine: Annotated[str | None, typer.Option(help="Short for -k engine=...")] = None,
    reference: Annotated[
        list[str] | None, typer.Option(help="Arguments of a second environment measured in the same run, name=value.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="For each rate.")] = 5.0,
    as_json: Json = False,
) -> None:
    """Steps and resets per second, cold start, memory, pool of no, one and two processes."""
    from gagpo.envs.check.bench import bench as run
    from gagpo.envs.check.bench import table

    own = values(kwargs) | ({"engine": engine} if engine else {})
    report = run(env, own, seconds, reference_kwargs=own | values(reference) if reference else None)
    print_table(table(report))
    if as_json:
        print_json(report)


@bench.command("credit")
def bench_credit(
    turns: Annotated[int, typer.Option(min=1000)] = 100_000,
    tokens: Annotated[int, typer.Option(min=1000)] = 1_000_000,
    as_json: Json = False,
) -> None:
    """Seconds of every credit, and every objective relative to a plain PPO clip."""
    from gagpo.base.tables import Table, text_width
    from gagpo.planning.speed import bench_credit as run

    report = run(turns, tokens)
    for title, column in report.items():
        rows = [[name, f"{value:.3f}"] for name, value in sorted(column.items(), key=lambda one: -one[1])]
        say(*Table(["", title], rows).lines(text_width()))
    if as_json:
        print_json(report)


@bench.command("alfworld")
def bench_alfworld(
    rounds: Annotated[int, typer.Option(min=1, help="Each engine is measured so often, in turn.")] = 3,
    games: Games = None,
    as_json: Json = False,
) -> None:
    """Steps and resets per second of the native engine, of textworld as it is (stock), and of textworld memoised."""
    from gagpo.base.tables import Table, text_width
    from gagpo.envs.alfworld.reference.speed import ENGINES
    from gagpo.envs.alfworld.reference.speed import bench as run

    files = None if games is None else sorted(games.rglob("game.tw-pddl"))
    report = run(files, rounds=rounds)
    names = {"native": "native", "textworld": "textworld, stock", "textworld-memoised": "textworld, memoised by us"}
    rows = []
    for engine in ENGINES:  # each against the native one
        steps, resets = report[engine]["steps_per_s"], report[engine]["resets_per_s"]
        times = "" if engine == "native" else f"{report['native']['steps_per_s'] / steps:,.0f} x"
        rows.append([names[engine], f"{steps:,.0f}", f"{resets:,.0f}", times])
    say(*Table(["engine", "steps/s", "resets/s", "native is"], rows).lines(text_width()))
    if as_json:
        print_json(report)


@bench.command("alfworld-parity")
def bench_parity(
    steps: Annotated[int, typer.Option(min=1, help="Steps to compare.")] = 200_000,
    seed: Annotated[int, typer.Option()] = 0,
    processes: Annotated[int, typer.Option(min=1)] = 2,
    games: Games = None,
    journal: Annotated[Path | None, typer.Option(help="Goes on where this file says; one line per game.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Play the native and the reference ALFWorld engine side by side and compare every byte."""
    from gagpo.base.progress import track
    from gagpo.envs.alfworld.reference.parity import parity

    files = None if games is None else sorted(games.rglob("game.tw-pddl"))
    with track("comparing", steps, "steps", quiet) as meter:
        report = parity(files, steps=steps, seed=seed, processes=processes, journal=journal, progress=meter.reach)
    say("\n".join(f"{key}: {value}" for key, value in report.items() if key != "first_mismatches"))
    mismatches = report["first_mismatches"]
    assert isinstance(mismatches, list)
    for mismatch in mismatches:
        say(f"mismatch: {mismatch}")
    if as_json:
        print_json(report)
    if report["mismatches"]:
        raise typer.Exit(1)
