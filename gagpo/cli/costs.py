"""The commands that say what an iteration costs: here, part by part, and on many processors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gagpo.cli.options import Config, Json, Overrides, PromptTokens, ResponseTokens, Turns, print_json, print_table, say

if TYPE_CHECKING:
    from gagpo.settings import RunSettings


def add_to(app: typer.Typer) -> None:
    """Hang the commands of this file under ``app``."""
    app.command()(profile)
    app.command()(simulate)


def profile(
    config: Config,
    overrides: Overrides = None,
    iterations: Annotated[int, typer.Option(min=1, help="Measured and averaged, after the first.")] = 3,
    as_json: Json = False,
) -> None:
    """Train for a few iterations and say where their time goes; nothing is kept."""
    from gagpo.settings import load

    settings = load(config, overrides or [])
    from gagpo.planning import profile as profiling

    shares = profiling.profile(settings, iterations)
    rollout = settings.rollout
    played = f"{rollout.tasks} x {rollout.samples} episodes"
    print_table(shares.table(f"{config}: {played}, mean of {iterations} iterations"))
    last = shares.metrics[-1]
    say(
        f"{last['tokens_per_second']:,.0f} response tokens a second; of the rows' tokens the update read "
        f"{last.get('train_tokens_read', 0.0):.0%}"
    )
    if as_json:
        print_json(shares.record())


def simulate(
    config: Config,
    overrides: Overrides = None,
    gpus: Annotated[str, typer.Option(help="Numbers of processors, 8,64,512.")] = "8,64,512",
    ahead: Annotated[str, typer.Option(help="Values of rollout.ahead, 0,1.")] = "0,1",
    gpu: Annotated[str, typer.Option(help="Whose data sheet the rates are stated by: H100, A100, RTX 4090.")] = "H100",
    rates: Annotated[Path | None, typer.Option(help="A file of rates; `--write-rates` makes one.")] = None,
    measure: Annotated[
        Path | None, typer.Option(help="A run whose rates and lengths of turns and episodes are taken.")
    ] = None,
    write_rates: Annotated[Path | None, typer.Option(help="Write the rates that were used, to be changed.")] = None,
    prompt_tokens: PromptTokens = 300,
    turns: Turns = None,
    response_tokens: ResponseTokens = None,
    iterations: Annotated[int, typer.Option(min=1, help="Simulated and averaged, after the first.")] = 3,
    as_json: Json = False,
) -> None:
    """Simulate a run on many processors: time of an iteration, what waits for what, and what on-policy costs."""
    from gagpo.base.errors import InvalidArgument
    from gagpo.settings import load

    settings = load(config, overrides or [])
    counts, aheads = _numbers("--gpus", gpus, 1), _numbers("--ahead", ahead, 0)
    try:
        from gagpo.planning.simulate import measure as measuring
        from gagpo.planning.simulate import study
    except ModuleNotFoundError as error:
        if error.name != "simpy":
            raise
        raise InvalidArgument("simulating needs simpy: pip install 'gagpo[scale]'") from None
    from gagpo.planning.lengths import Guess
    from gagpo.planning.plan import shape_of
    from gagpo.planning.simulate import rates as known
    from gagpo.planning.simulate.workload import guessed

    sheet = known.SHEETS.get(gpu)
    if sheet is None:
        raise InvalidArgument(f"--gpu is one of {', '.join(known.SHEETS)}, got {gpu!r}; others by --rates")
    run = None if measure is None else measuring.measure(measure)
    guess = Guess(prompt_tokens, turns, response_tokens)
    workload = run.workload if run else guessed(settings, guess)

    def stated(changed: RunSettings) -> known.Rates:
        return known.stated(changed, shape, prompt_tokens, workload.mean_turns, workload.mean_response, sheet)

    asked: known.Rates | Callable[[RunSettings], known.Rates]
    if rates is not None:
        asked = used = known.load(rates)
    elif run is not None:
        asked = used = run.rates
    else:
        shape, asked = shape_of(settings), stated
        used = stated(settings)
    if write_rates is not None:
        from gagpo.base import durable

        durable.write_text(write_rates, known.dump(used))
    lines = list(study.study(settings, workload, asked, counts, aheads, iterations))
    rollout = settings.rollout
    title = f"{settings.model}: {rollout.tasks} x {rollout.samples} episodes, {workload.mean_turns:.1f} turns of "
    print_table(study.table(lines, f"{title}{workload.mean_response:.0f} tokens"))
    for line in study.price_of_waiting(lines):
        say(line)
    count = settings.training.iterations
    for one in lines:
        hours = one.outcome.seconds * count / 3600
        where = f"{one.gpus} GPU{'s' if one.gpus > 1 else ''}, ahead {one.ahead}: "
        say(f"{where}{hours:,.3g} hours for {count} iterations of {one.outcome.seconds:,.0f} s, evaluations aside")
    say(f"rates: {used.source}\nlengths: {workload.source}")
    if as_json:
        record = {"rates": used.record(), "workload": workload.source, "lines": [line.record() for line in lines]}
        print_json(record)


def _numbers(option: str, text: str, least: int) -> list[int]:
    from gagpo.base.errors import InvalidArgument

    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and least <= int(part) <= 100_000 for part in parts):
        raise InvalidArgument(f"{option} takes numbers from {least} on, separated by commas, got {text!r}")
    return [int(part) for part in parts]
