"""Write the viewer's folder: pages, an index of all runs, and episodes in shards that are loaded on demand.

Pages opened from disk may load scripts but not data, so every data file is a script that passes one JSON value.
"""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from gagpo.base import durable
from gagpo.eval.episode_files import EpisodeRecord, outcomes_of, read_episode_file
from gagpo.eval.viewer.credit import CreditCalculator, EpisodeCredit, credit_of_run
from gagpo.eval.viewer.index import (
    FORMAT,
    LARGE,
    EpisodeEntry,
    EpisodeFile,
    GroupEntry,
    describe_file,
    index,
    reading_order,
)
from gagpo.eval.viewer.opening import home_of, open_path
from gagpo.runs.reading import BadResult

LOG = logging.getLogger("gagpo")

MARKER = ".gagpo-view"  # marks a folder that may be replaced
DATA = "data"
INDEX = f"{DATA}/index.js"
LONGEST_GOAL = 300  # characters
SHARD = 600_000  # characters of one shard, about
MOST_WARNINGS = 3  # about rows of one file
OUTCOMES = ("terminated", "truncated", "failed")


def export(paths: Sequence[Path], output: Path, problems: Sequence[str] = ()) -> Path:
    """Write the folder whole or not at all, replacing one written before; return the page to open.

    paths: run folders, and files of episodes or results.
    problems: further read errors to show.

    Links and other files among a run's episodes that are not regular are skipped with a warning.

    Raises:
        BadResult: a folder is not a run, there are no episodes, or ``output`` has other files.
    """
    require_replaceable(output)
    contents = [open_path(path) for path in paths]
    skipped = [problem for *_, problems_of_run in contents for problem in problems_of_run]
    for problem in skipped:
        LOG.warning("%s", problem)
    if not any(files for _, files, _ in contents):
        raise BadResult(
            "holds no episodes to look at (no episodes/*.jsonl)",
            where=paths[0],
            advice=("train with training.save_episodes_every=1, or wait for its first evaluation"),
        )
    with durable.replacing_folder(output.resolve(), flushed=False) as target:
        write_pages(target)
        sources = []
        for number, (path, (_, files, _)) in enumerate(zip(paths, contents, strict=True)):
            calculate_credit = credit_of_run(home_of(path))
            sources += [write_file(target, number, file, calculate_credit) for file in files]
        for source in sources:
            _warn_of(source.problems)
        if not any(source.groups for source in sources):
            raise BadResult("holds no finished episode", where=paths[0])
        sources.sort(key=reading_order)
        runs = [run for run, *_ in contents]
        write_script(target / INDEX, "viewer.load", index(runs, sources, [*problems, *skipped]))
    return output / "index.html"


def _warn_of(problems: Sequence[str]) -> None:
    """The first rows of a file that could not be read; the page has all of them."""
    for problem in problems[:MOST_WARNINGS]:
        LOG.warning("%s", problem)
    if len(problems) > MOST_WARNINGS:
        LOG.warning("%d more rows of this file could not be read", len(problems) - MOST_WARNINGS)


def write_pages(folder: Path) -> None:
    """Write the pages without data into an empty folder, and the marker by which it may be replaced."""
    (folder / DATA).mkdir()
    (folder / MARKER).write_text(FORMAT + "\n", encoding="ascii")
    for page in resources.files("gagpo.eval.viewer").joinpath("page").iterdir():
        if page.name.endswith((".html", ".css", ".js")):
            (folder / page.name).write_bytes(page.read_bytes())


def write_file(folder: Path, run: int, path: Path, calculate_credit: CreditCalculator) -> EpisodeFile:
    """Write the shards of one file of episodes; return its entry in the index."""
    source = describe_file(run, path.stem)
    source.state = state_of(path)
    episodes, source.problems = read_episode_file(path)
    source.outcomes = outcomes_of(episodes)
    goals = {episode.task: episode.info.get("goal") for episode in episodes}
    source.goals = {task: goal[:LONGEST_GOAL] for task, goal in goals.items() if isinstance(goal, str)}
    groups = _grouped(episodes)
    credited = _credited(calculate_credit, [episode for group in groups for episode in group])
    shard: list[dict[str, object]] = []
    size = 0
    for group in groups:
        credit = [next(credited) for _ in group]
        differ = _disagreements(credit)
        # A single episode has nothing to be compared with: its credit would be 0 by definition.
        credits_shown = len(group) > 1
        page_records = [_page_record(*of, credits_shown) for of in zip(group, credit, differ, strict=True)]
        record: dict[str, object] = {"episodes": page_records}
        entry = _entry(group, differ, _gap(credit), len(source.shards), len(shard))
        source.groups.append(entry)
        source.episodes += [
            EpisodeEntry(_flags(episode), round(episode.reward, 6), episode.num_turns) for episode in group
        ]
        shard.append(record)
        size += len(json.dumps(record))
        if size > SHARD:
            _write_shard(folder, source, shard)
            shard = []
            size = 0
    if shard:
        _write_shard(folder, source, shard)
    return source


def state_of(path: Path) -> tuple[int, int]:
    """Time of the last change in nanoseconds and size of a file, which differ when it has been written again."""
    status = path.stat()
    return status.st_mtime_ns, status.st_size


def _write_shard(folder: Path, source: EpisodeFile, groups: list[dict[str, object]]) -> None:
    """Write a shard. Its name changes with the file, so that a live page never takes an old shard for a new one."""
    slug = re.sub(r"[^A-Za-z0-9]+", "-", source.label)[:40]
    digest = zlib.crc32(f"{source.label}{source.state}".encode(errors="surrogatepass"))
    name = f"{source.run}-{slug}-{digest:08x}-{len(source.shards)}.js"
    write_script(folder / DATA / name, "viewer.shard", groups, name)
    source.shards.append(name)


def require_replaceable(folder: Path) -> None:
    """Raise :class:`BadResult` unless ``folder`` is absent, empty or was written by the viewer."""
    if folder.is_dir():
        if (folder / MARKER).is_file() or not any(folder.iterdir()):
            return
        raise BadResult(
            f"is not empty and was not written by the viewer (no {MARKER})",
            where=folder,
            advice="choose another with --out",
        )
    if folder.exists() or folder.is_symlink():
        raise BadResult("is not a folder", where=folder, advice="choose another with --out")


# The parts of a file --------------------------------------------------------------------------------------------------


def _grouped(episodes: Sequence[EpisodeRecord]) -> list[list[EpisodeRecord]]:
    """Episodes by task and group number, in the order of the file."""
    groups: dict[tuple[int, str], list[EpisodeRecord]] = {}
    for episode in episodes:
        groups.setdefault((episode.group, episode.task), []).append(episode)
    return list(groups.values())


def _credited(calculate_credit: CreditCalculator, episodes: Sequence[EpisodeRecord]) -> Iterator[EpisodeCredit | None]:
    """Credit of every episode; None if it has no turns or failed."""
    usable = [episode for episode in episodes if episode.turns and episode.outcome != "failed"]
    credits = iter(calculate_credit(usable)) if usable else iter(())
    return (next(credits) if episode.turns and episode.outcome != "failed" else None for episode in episodes)


def _entry(
    group: Sequence[EpisodeRecord], differ: Sequence[list[bool]], gap: float | None, shard: int, place: int
) -> GroupEntry:
    reward = sum(episode.reward for episode in group) / len(group)
    turns = sum(episode.num_turns for episode in group) / len(group)
    wins = sum(episode.won for episode in group)
    turns_compared = sum(map(len, differ))
    share = sum(map(sum, differ)) / turns_compared if turns_compared else 0.0
    return GroupEntry(
        task=group[0].task,
        type=group[0].kind,
        size=len(group),
        wins=wins,
        turns=round(turns, 2),
        differ=round(share, 4),
        gap=gap,
        reward=round(reward, 6),
        shard=shard,
        place=place,
    )


def _gap(group: Sequence[EpisodeCredit | None]) -> float | None:
    """Mean difference of the two algorithms' advantages over the turns of a group; None for a single episode."""
    rows = [np.array([*credit.advantages.values()]) for credit in group if credit]
    if len(rows) < 2:
        return None
    gagpo_N, grpo_N = np.concatenate(rows, axis=1)
    return round(float(np.abs(gagpo_N - grpo_N).mean()), 4)


def _disagreements(group: Sequence[EpisodeCredit | None]) -> list[list[bool]]:
    """Of every turn of a group, whether the two algorithms give it large advantages of opposite signs."""
    rows = [np.array([*credit.advantages.values()]) if credit else np.zeros((2, 0)) for credit in group]
    everything = np.concatenate(rows, axis=1)
    if len(group) < 2 or not everything.size:
        return [[] for _ in group]
    least = LARGE * everything.std(axis=1, keepdims=True)
    return [((abs(row) > least).all(axis=0) & (row[0] * row[1] < 0)).tolist() for row in rows]


def _flags(episode: EpisodeRecord) -> int:
    outcome = OUTCOMES.index(episode.outcome) if episode.outcome in OUTCOMES else 0
    return int(episode.won) | outcome << 1 | (episode.kept is False) << 3


def _page_record(
    episode: EpisodeRecord, credit: EpisodeCredit | None, differ: list[bool], credits_shown: bool
) -> dict[str, object]:
    record: dict[str, object] = episode.model_dump(exclude_none=True)
    if credit is not None:
        if credits_shown:
            record["credit"] = {name: [round(a, 5) for a in row] for name, row in credit.advantages.items()}
        record["differs"] = [int(differs) for differs in differ]
        record["states"] = credit.states
        record["values"] = [round(value, 5) for value in credit.values]
    return record


def write_script(path: Path, call: str, value: object, name: str | None = None) -> None:
    """Write ``call(name, value)`` as ASCII; a page may read it at any time."""
    first = "" if name is None else json.dumps(name) + ", "
    with durable.replacing(path, flushed=False) as temporary, temporary.open("w", encoding="ascii") as file:
        file.write(f"{call}({first}")
        file.write(json.dumps(value, separators=(",", ":"), allow_nan=False))
        file.write(");\n")
