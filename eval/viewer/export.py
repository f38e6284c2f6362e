"""Writing the viewer's folder: the pages, an index of all runs, and the episodes in shards that are read when needed.

Pages opened from disk may load scripts but not data, so every data file is a script that hands one JSON value over.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path

from gagpo.envs import durable
from gagpo.eval.metrics.register import Display, shown_in
from gagpo.eval.reading import BadResult
from gagpo.eval.runs import Run, load_run, read_label
from gagpo.eval.viewer.records import EpisodeRecord, Explain, Explained, read_episode_file

FORMAT = "gagpo view 1"
SHARD = 600_000  # characters of one shard, about
DEAD_ZONE = 0.1  # advantages nearer to zero have no sign
OUTCOMES = ("terminated", "truncated", "failed")
Notes = Callable[[Run], list[str]]


@dataclass(frozen=True)
class GroupEntry:
    """One group in the index. differ: share of its turns whose credit is disputed; place: where in its shard it is."""

    task: str
    type: str
    size: int
    wins: int
    turns: float
    differ: float
    shard: int
    place: int


@dataclass(frozen=True)
class EpisodeEntry:
    """One episode in the index. flags: success in bit 0, the outcome in bits 1 and 2, left out of training in bit 3."""

    flags: int
    reward: float
    turns: int


@dataclass
class EpisodeFile:
    """One episode file, as the index describes it."""

    run: int
    label: str
    stage: str
    split: str
    iteration: int | None
    shards: list[str] = field(default_factory=list)
    groups: list[GroupEntry] = field(default_factory=list)
    episodes: list[EpisodeEntry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def record(self) -> dict[str, object]:
        """What the index holds of it beside its groups and episodes."""
        names = ("run", "label", "stage", "split", "iteration", "shards")
        return {name: getattr(self, name) for name in names}


class Exporter:
    """Writes one folder about ``runs``; call :meth:`write` again and only what changed is written again.

    explain: gives credit to episodes; its first two algorithms are set against each other. notes: sentences about the
    health of a run, from its numbers. live: the pages look for news every few seconds.
    """

    def __init__(
        self, runs: Sequence[Path], output: Path, explain: Explain, notes: Notes | None = None, live: bool = False
    ):
        self.folders, self.output, self.explain, self.notes, self.live = list(runs), output, explain, notes, live
        self.known: dict[Path, tuple[tuple[int, int], EpisodeFile]] = {}

    def write(self) -> Path:
        """The path of the page to open. Raises :class:`BadResult` when a folder is no run or has no episodes."""
        runs = [load_run(folder) for folder in self.folders]
        files = [sorted((run.folder / "episodes").glob("*.jsonl")) for run in runs]
        if not any(files) and not self.live:
            raise BadResult(
                f"{self.folders[0]} holds no episodes to look at (no episodes/*.jsonl); train with "
                "training.keep_episodes=1, or wait for its first evaluation"
            )
        self._pages()
        sources = [self._source(number, path) for number, paths in enumerate(files) for path in paths]
        sources.sort(key=_reading_order)
        index = _index(runs, sources, self.notes, self.live)
        _write_script(self.output / "data" / "index.js", "viewer.load", index)
        return self.output / "index.html"

    def _pages(self) -> None:
        """Copy the pages; a folder that holds something else is left alone."""
        if self.output.exists() and any(self.output.iterdir()) and not (self.output / "data" / "index.js").exists():
            raise BadResult(f"{self.output} is not empty and no viewer's folder; name another with --out")
        (self.output / "data").mkdir(parents=True, exist_ok=True)
        for page in resources.files("gagpo.eval.viewer").joinpath("page").iterdir():
            target = self.output / page.name
            # A page that is there stays: a server may be handing it out.
            if page.name.endswith((".html", ".css", ".js")) and not (self.known and target.exists()):
                target.write_bytes(page.read_bytes())

    def _source(self, run: int, path: Path) -> EpisodeFile:
        state = path.stat()
        stamp = (state.st_mtime_ns, state.st_size)
        if path in self.known and self.known[path][0] == stamp:
            return self.known[path][1]
        source = _described(run, path.stem)
        try:
            episodes, source.problems = read_episode_file(path)
        except BadResult as error:
            if not self.live:
                raise
            episodes, source.problems = [], [str(error)]
        groups = _grouped(episodes)
        explained = self._explained([one for group in groups for one in group])
        shard: list[dict[str, object]] = []
        size = 0
        for group in groups:
            # Its entries go into the index, its episodes into the shard, which is written when it is large enough.
            credit = [next(explained) for _ in group]
            record: dict[str, object] = {"episodes": [_shown(*pair) for pair in zip(group, credit, strict=True)]}
            source.groups.append(_entry(group, credit, len(source.shards), len(shard)))
            source.episodes += [EpisodeEntry(_flags(one), round(one.reward, 6), len(one.turns)) for one in group]
            shard.append(record)
            size += len(json.dumps(record))
            if size > SHARD:
                self._shard(source, shard)
                shard, size = [], 0
        if shard:
            self._shard(source, shard)
        self.known[path] = (stamp, source)
        return source

    def _explained(self, episodes: Sequence[EpisodeRecord]) -> Iterator[Explained | None]:
        """Credit of every episode, None where there is nothing to give credit to."""
        usable = [one for one in episodes if one.turns and one.outcome != "failed"]
        found = iter(self.explain(usable)) if usable else iter(())
        return (next(found) if one.turns and one.outcome != "failed" else None for one in episodes)

    def _shard(self, source: EpisodeFile, groups: list[dict[str, object]]) -> None:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", source.label)[:40]
        name = f"{source.run}-{slug}-{zlib.crc32(source.label.encode()):08x}-{len(source.shards)}.js"
        _write_script(self.output / "data" / name, "viewer.shard", groups, name)
        source.shards.append(name)


def export(runs: Sequence[Path], output: Path, explain: Explain, notes: Notes | None = None) -> Path:
    """Write the folder once, from nothing; see :class:`Exporter`."""
    if (output / "data" / "index.js").exists():
        shutil.rmtree(output)
    return Exporter(runs, output, explain, notes).write()


# The parts of the index -----------------------------------------------------------------------------------------------


def _described(run: int, label: str) -> EpisodeFile:
    """What an episode file is, from its name: ``train-0005``, ``after-valid_unseen``, ``iteration-0010-test``."""
    training = re.fullmatch(r"train-(\d{1,9})", label)
    if training:
        return EpisodeFile(run, label, "train", "train", int(training[1]))
    stage, split, iteration = read_label(label)
    return EpisodeFile(run, label, stage or "other", split, iteration)


def _reading_order(source: EpisodeFile) -> tuple[int, int, int, str]:
    order = {"before": 0, "train": 1, "iteration": 2, "after": 3, "other": 4}
    return (source.run, order[source.stage], source.iteration or 0, source.label)


def _grouped(episodes: Sequence[EpisodeRecord]) -> list[list[EpisodeRecord]]:
    """Episodes of one task and group number together, in the order of the file."""
    groups: dict[tuple[int, str], list[EpisodeRecord]] = {}
    for one in episodes:
        groups.setdefault((one.group, one.task), []).append(one)
    return list(groups.values())


def _entry(group: Sequence[EpisodeRecord], credit: Sequence[Explained | None], shard: int, place: int) -> GroupEntry:
    turns = sum(len(one.turns) for one in group) / len(group)
    wins, differ = sum(one.won for one in group), _difference(credit)
    return GroupEntry(
        group[0].task, group[0].task_type, len(group), wins, round(turns, 2), round(differ, 4), shard, place
    )


def _difference(credit: Sequence[Explained | None]) -> float:
    """Share of the group's turns that the first algorithm rewards and the second does not, or the reverse."""
    pairs = [pair for one in credit if one for pair in zip(*list(one.advantages.values())[:2], strict=True)]
    return sum(_sign(a) != _sign(b) for a, b in pairs) / len(pairs) if pairs and len(pairs[0]) == 2 else 0.0


def _sign(value: float) -> int:
    return 0 if abs(value) < DEAD_ZONE else int(math.copysign(1, value))


def _flags(one: EpisodeRecord) -> int:
    outcome = OUTCOMES.index(one.outcome) if one.outcome in OUTCOMES else 0
    return int(one.won) | outcome << 1 | (one.kept is False) << 3


def _shown(one: EpisodeRecord, credit: Explained | None) -> dict[str, object]:
    record: dict[str, object] = one.model_dump(exclude_none=True)
    if credit is not None:
        record["credit"] = {name: [round(a, 5) for a in row] for name, row in credit.advantages.items()}
        record["states"] = credit.states
        record["values"] = [round(value, 5) for value in credit.values]
    return record


def _index(runs: Sequence[Run], sources: Sequence[EpisodeFile], notes: Notes | None, live: bool) -> dict[str, object]:
    """The index in columns. Names of tasks and types stand in it once, and are referred to by their number."""
    entries = [entry for source in sources for entry in source.groups]
    tasks = {name: number for number, name in enumerate(dict.fromkeys(entry.task for entry in entries))}
    types = {name: number for number, name in enumerate(dict.fromkeys(entry.type for entry in entries))}
    groups: dict[str, list[object]] = {"source": [n for n, source in enumerate(sources) for _ in source.groups]}
    groups |= _columns(GroupEntry, entries)
    groups |= {"task": [tasks[entry.task] for entry in entries], "type": [types[entry.type] for entry in entries]}
    return {
        "format": FORMAT,
        "live": live,
        "runs": [_run(run, notes) for run in runs],
        "curves": [
            {"name": metric.name, "caption": metric.caption, "share": metric.share}
            for metric in shown_in(Display.VIEWER)
        ],
        "sources": [source.record() for source in sources],
        "tasks": list(tasks),
        "types": list(types),
        "groups": groups,
        "episodes": _columns(EpisodeEntry, [entry for source in sources for entry in source.episodes]),
        "problems": [problem for source in sources for problem in source.problems],
    }


def _columns(kind: type[GroupEntry | EpisodeEntry], entries: Sequence[object]) -> dict[str, list[object]]:
    return {column.name: [getattr(entry, column.name) for entry in entries] for column in fields(kind)}


def _run(run: Run, notes: Notes | None) -> dict[str, object]:
    keys = sorted({key for row in run.metrics for key in row})
    return {
        "name": run.name,
        "algorithm": run.algorithm,
        "metrics": {key: [row.get(key) for row in run.metrics] for key in keys},
        "notes": notes(run) if notes else [],
        "evaluations": [
            {
                "label": one.label,
                "stage": one.stage,
                "split": one.split,
                "iteration": one.iteration,
                "success": one.result.success.record(),
                "episodes": one.result.episodes,
            }
            for one in run.evaluations
        ],
    }


def _write_script(path: Path, call: str, value: object, name: str | None = None) -> None:
    """``call(name, value)`` as ASCII, whole or not at all."""
    first = "" if name is None else json.dumps(name) + ", "
    with durable.replacing(path, flushed=False) as part, part.open("w", encoding="ascii") as file:
        file.write(f"{call}({first}")
        file.write(json.dumps(value, separators=(",", ":"), allow_nan=False))
        file.write(");\n")
