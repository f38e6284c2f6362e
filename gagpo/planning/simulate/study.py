"""What a run costs on so many processors: the placement that suits them, simulated, and one line about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from gagpo.agents.engines.registry import SERVERS
from gagpo.base.tables import Table
from gagpo.collecting.distributed_rollout import require_fitting
from gagpo.planning.simulate.rates import Rates
from gagpo.planning.simulate.simulation import SimulatedPlacement, Simulation, SimulationResult
from gagpo.planning.simulate.update import update_seconds
from gagpo.planning.simulate.workload import Workload
from gagpo.settings import RunSettings, SettingsError

TRIED = 2  # placements of each kind that are simulated
TAIL = 1.5  # the longest episodes over the mean one, for choosing a placement only


@dataclass(frozen=True)
class StudyRow:
    """One row of the table. gpus: that there are; the placement leaves those idle that would not help."""

    gpus: int
    ahead: int
    placement: SimulatedPlacement
    outcome: SimulationResult

    def record(self) -> dict[str, object]:
        """Plain values."""
        placed = {**asdict(self.placement), "processors": self.placement.processors}
        return {
            "gpus": self.gpus,
            "ahead": self.ahead,
            "placement": placed,
            **asdict(self.outcome),
            "bottleneck": self.outcome.bottleneck,
        }


def study(
    settings: RunSettings,
    workload: Workload,
    rates: Rates | Callable[[RunSettings], Rates],
    gpus: Sequence[int],
    aheads: Sequence[int] = (0, 1),
    iterations: int = 3,
) -> Iterator[StudyRow]:
    """A line for every number of processors and every ``ahead``: the fastest placement that ``train`` accepts.

    Of those that put both roles on the same processors, and of those that keep them apart, the ``TRIED`` expected to be
    the fastest are simulated, and with them what was best on fewer processors: more may be left idle. rates: what is
    known, or what gives it for settings: an engine samples otherwise beside a thread that trains.
    """
    changed = {ahead: with_ahead(settings, ahead) for ahead in aheads}
    known = {ahead: rates if isinstance(rates, Rates) else rates(changed[ahead]) for ahead in aheads}
    best: dict[int, StudyRow] = {}
    for count in sorted(set(gpus)):
        for ahead in aheads:
            asked = (changed[ahead], workload, known[ahead])
            allowed = [placed for placed in placements(count, ahead) if accepts(changed[ahead], placed)]
            lines = [replace(best[ahead], gpus=count)] if ahead in best else []
            for shared in (True, False):
                kind = [placed for placed in allowed if placed.shared == shared]
                kind.sort(key=lambda placed: (expected(*asked, placed), placed.processors))
                for placement in kind[:TRIED]:
                    outcome = Simulation(*asked, placement, iterations).run()
                    lines.append(StudyRow(count, ahead, placement, outcome))
            # One rank alone is always taken; on a tie the fewer processors.
            best[ahead] = min(lines, key=lambda line: (line.outcome.seconds, line.placement.processors))
            yield best[ahead]


def accepts(settings: RunSettings, placed: SimulatedPlacement) -> bool:
    """Whether ``train`` takes the placement, by the very checks that it makes before a run.

    Only servers sample on processors of their own.
    """
    if settings.engine.name not in SERVERS and not placed.shared:
        return False
    try:
        if placed.ranks > 1:
            require_fitting(settings, placed.ranks)
    except SettingsError:
        return False
    return True


def with_ahead(settings: RunSettings, ahead: int) -> RunSettings:
    """The settings with ``rollout.ahead`` and the correction that comes with it."""
    stale = max(settings.rollout.max_staleness, ahead)
    rollout = settings.rollout.model_copy(update={"ahead": ahead, "max_staleness": stale})
    algorithm = settings.algorithm
    if ahead and not algorithm.correction.recomputes:
        correction = type(algorithm.correction)(name="token")
        algorithm = algorithm.model_copy(update={"correction": correction})
    return settings.model_copy(update={"rollout": rollout, "algorithm": algorithm})


def placements(gpus: int, ahead: int) -> list[SimulatedPlacement]:
    """Both roles on the same processors, on all of them, on half, a quarter, ...; with ``ahead`` also apart."""
    found = []
    used = gpus
    # Fewer processors than there are may be faster: exchange grows with their number.
    while used:
        found.append(SimulatedPlacement(used, used, shared=True))
        if ahead:
            found += [
                SimulatedPlacement(used - ranks, ranks, shared=False)
                for ranks in sorted({max(1, round(used * share / 8)) for share in range(1, 8)})
                if ranks < used
            ]
        used //= 2
    return found


def expected(settings: RunSettings, workload: Workload, rates: Rates, placed: SimulatedPlacement) -> float:
    """Seconds of an iteration by means alone: what :func:`study` chooses a placement by."""
    rollout = settings.rollout
    episodes = rollout.tasks * rollout.samples
    each = min(rollout.concurrency, -(-episodes // placed.replicas))
    waves = max(1.0, episodes / placed.replicas / each)
    read = sum(turn.read for played in workload.episodes for turn in played) / len(workload.episodes)
    turns, response = workload.mean_turns, workload.mean_response
    tail = 1.0 if rollout.ahead else TAIL
    sampling = waves * (
        turns * response * rates.decode_seconds(each) * tail
        + each * read * rates.read_seconds
        + turns * rates.environment_seconds * max(1.0, each / rollout.lanes)
    )
    batch = [workload.episodes[number % len(workload.episodes)] for number in range(episodes)]
    rows = [tokens for played in batch for tokens in workload.rows(played)]
    training = update_seconds(settings, rates, rows, placed.ranks).total
    if placed.shared or not rollout.ahead:
        return sampling + training + rates.transfer_seconds
    return max(sampling + rates.transfer_seconds, training)


def table(lines: Sequence[StudyRow], title: str) -> Table:
    """A row for each line."""
    numbers = ["iteration, s", "tokens/s", "sampling", "training", "staleness"]
    header = ["GPUs", "ahead", "used as", *numbers, "bottleneck"]
    return Table(header, [_cells(line) for line in lines], title, words=(2, len(header) - 1))


def _cells(line: StudyRow) -> list[str]:
    out = line.outcome
    return [
        str(line.gpus),
        str(line.ahead),
        line.placement.describe(),
        f"{out.seconds:,.3g}" if out.seconds < 1000 else f"{out.seconds:,.0f}",
        f"{out.tokens_per_second:,.0f}",
        f"{100 * out.sampling:.0f} %",
        f"{100 * out.training:.0f} %",
        f"{out.staleness:.2f}",
        out.bottleneck,
    ]


def price_of_waiting(lines: Sequence[StudyRow]) -> list[str]:
    """A sentence for every number of processors: what on-policy sampling costs against the least ``ahead``."""
    sentences = []
    for count in dict.fromkeys(line.gpus for line in lines):
        by_ahead = {line.ahead: line.outcome for line in lines if line.gpus == count}
        # Only where both were simulated.
        others = [ahead for ahead in by_ahead if ahead]
        if 0 in by_ahead and others:
            ahead = min(others)
            times = by_ahead[0].seconds / by_ahead[ahead].seconds
            sentences.append(f"{count} GPUs: on-policy (ahead 0) takes {times:.2f} times as long as ahead {ahead}")
    return sentences
