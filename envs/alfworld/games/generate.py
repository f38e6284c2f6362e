"""Generate games from a seed and check each by playing its walkthrough.

Games are stored in ``<root>/<split>/<goal>/<trial>/game.tw-pddl`` and listed in ``<root>/index.json``, so that the next
call only compares file sizes and times. An interrupted call can be repeated and resumes. If several processes want the
same games, one makes them and the others wait.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gagpo.base import durable, lock
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.base.folders import data_folder
from gagpo.envs.alfworld.games.catalogue import SIZES, TASK_TYPES
from gagpo.envs.alfworld.games.gamefile import GAME, TRAJECTORY, GameFiles, render
from gagpo.envs.alfworld.games.package_data import package_data
from gagpo.envs.alfworld.games.random_stream import RandomStream
from gagpo.envs.alfworld.games.scenes import draw_scenario
from gagpo.envs.alfworld.games.text_style import DEFAULT, TextStyle, human_text
from gagpo.envs.alfworld.native.engine import NativeEngine

log = logging.getLogger(__name__)

SPLITS = ("train", "valid_seen", "valid_unseen")
DEFAULT_COUNTS = {"train": 300, "valid_seen": 72, "valid_unseen": 72}
FORMAT = 1  # version of the generator; another number makes other games


class UnsolvedGame(GagpoError, RuntimeError):
    """A generated game that its walkthrough does not win: a bug of the generator or the engine."""


@dataclass(frozen=True)
class GeneratedGame:
    """A game on disk. id: its folder relative to the split. digest: SHA-256 of the game file."""

    split: str
    task_type: str
    index: int
    id: str
    digest: str
    size: int
    mtime_ns: int


def default_root(size: str, seed: int, text_style: TextStyle = DEFAULT) -> Path:
    """The folder of the games generated from ``seed``."""
    return data_folder() / "alfworld" / f"{size}-seed{seed}{text_style.suffix}"


def generate(
    size: str = "small",
    seed: int = 0,
    counts: Mapping[str, int] | None = None,
    task_types: Sequence[str] = TASK_TYPES,
    root: Path | None = None,
    splits: Sequence[str] = SPLITS,
    patience: float = 3600.0,
    text_style: TextStyle = DEFAULT,
) -> dict[str, list[GeneratedGame]]:
    """Make the games of ``splits`` that are missing under ``root``; returns all games of each split.

    counts: games per split, shared evenly among ``task_types``. The default is :data:`DEFAULT_COUNTS`, with at most as
        many valid_seen as train games.
    patience: seconds to wait for another process that is making games here.
    text_style: the verb and the task texts; rooms and goals do not depend on it.

    Raises: ValueError for a bad argument, TimeoutError after ``patience``, :class:`UnsolvedGame`, and
    :class:`gagpo.envs.alfworld.games.package_data.AlfworldMissing`.
    """
    jobs = list_jobs(size, counts, task_types, splits)
    root = root if root is not None else default_root(size, seed, text_style)
    games = _Index(root, size, seed, text_style).lookup(jobs)
    if games is None:
        root.mkdir(parents=True, exist_ok=True)
        with lock.alone(root / ".lock", patience, f"making ALFWorld games in {root}"):
            index = _Index(root, size, seed, text_style)
            games = index.lookup(jobs)
            if games is None:
                games = _make(root, size, functools.partial(files_of, size, seed, text_style=text_style), jobs)
                index.store(games)
    return {split: [game for game in games if game.split == split] for split in splits}


Job = tuple[str, str, int]  # split, task type, index


def list_jobs(
    size: str, counts: Mapping[str, int] | None, task_types: Sequence[str], splits: Sequence[str] = SPLITS
) -> list[Job]:
    """The games that these settings stand for, sorted; raises ValueError for a bad argument."""
    full = DEFAULT_COUNTS | dict(counts or {})
    if "valid_seen" not in (counts or {}):
        full["valid_seen"] = max(0, min(full["valid_seen"], full["train"]))
    if size not in SIZES:
        raise InvalidArgument(f"there is no scene size {size!r}", advice=f"choose one of {', '.join(SIZES)}")
    for split in (*full, *splits):
        if split not in SPLITS:
            raise InvalidArgument(f"ALFWorld has no split {split!r}", advice=f"choose among {', '.join(SPLITS)}")
    for split, count in full.items():
        if count < 0:
            raise InvalidArgument(f"the number of {split} games must not be negative, got {count}", key=split)
    if not task_types:
        raise InvalidArgument("no task types were given", advice=f"choose among {', '.join(TASK_TYPES)}")
    for task_type in task_types:
        if task_type not in TASK_TYPES:
            raise InvalidArgument(
                f"there is no task type {task_type!r}", advice=f"choose among {', '.join(TASK_TYPES)}"
            )
    if full["valid_seen"] > full["train"]:
        raise InvalidArgument(
            (
                f"valid_seen ({full['valid_seen']}) must not have more games than train ({full['train']}): "
                "its rooms are those trained in"
            ),
            key="valid_seen",
        )
    types = [task_type for task_type in TASK_TYPES if task_type in task_types]
    jobs: list[Job] = []
    for split in splits:
        games_per_type, remainder = divmod(full[split], len(types))
        for position, task_type in enumerate(types):
            count = games_per_type + (position < remainder)
            jobs += [(split, task_type, index) for index in range(count)]
    return sorted(jobs)


# Making ---------------------------------------------------------------------------------------------------------------


def files_of(size: str, seed: int, job: Job, text_style: TextStyle = DEFAULT) -> GameFiles:
    """The files of one game, which depend on these arguments only."""
    split, task_type, index = job
    package = package_data()
    problem = draw_scenario(package, seed, size, split, task_type, index)
    if text_style.uses_human_text(index):
        rng = RandomStream("text", size, seed, split, task_type, index)
        text = human_text(rng, task_type, problem.object_type, problem.target, problem.toggle)
        problem = replace(problem, text=text)
    trial = f"trial_{size}_s{seed}_{split}_{index:05d}"
    return render(package, problem, trial, text_style.uses_put(index), located=text_style.verb == "released")


def _make(root: Path, size: str, render_job: Callable[[Job], GameFiles], jobs: list[Job]) -> list[GeneratedGame]:
    for partial_folder in root.glob(".*.part"):  # left by a killed process; this one holds the lock
        shutil.rmtree(partial_folder, ignore_errors=True)
    stored_games = {job: _stored_game(root, job, render_job(job)) for job in jobs}
    missing = sum(game is None for game in stored_games.values())
    if missing:
        log.warning("making %d %s ALFWorld games in %s (done once)", missing, size, root)
    engine = NativeEngine()
    return [game or _make_game(root, job, render_job(job), engine) for job, game in stored_games.items()]


def _stored_game(root: Path, job: Job, files: GameFiles) -> GeneratedGame | None:
    """The game if it is on disk with exactly the right content."""
    folder = root / job[0] / files.folder
    content = files.game.encode()
    try:
        if (folder / GAME).read_bytes() != content:
            return None
        if (folder / TRAJECTORY).read_bytes() != files.trajectory.encode():
            return None
        stat = (folder / GAME).stat()
    except OSError:
        return None
    return GeneratedGame(*job, files.folder, hashlib.sha256(content).hexdigest(), stat.st_size, stat.st_mtime_ns)


def _make_game(root: Path, job: Job, files: GameFiles, engine: NativeEngine) -> GeneratedGame:
    # Written under the root, because alfworld's rules find games in hidden folders of a split too.
    with durable.replacing_folder(root / job[0] / files.folder, flushed=False, within=root) as fresh:
        (fresh / GAME).write_bytes(files.game.encode())
        (fresh / TRAJECTORY).write_bytes(files.trajectory.encode())
        check_plan(engine, fresh / GAME, files.plan)
    game = _stored_game(root, job, files)
    assert game is not None
    return game


def check_plan(engine: NativeEngine, game: Path, plan: Sequence[str]) -> None:
    """Run ``plan``; raises :class:`UnsolvedGame` unless every command is admissible and exactly the last one wins."""
    scene = engine.reset(game)
    for number, command in enumerate(plan, 1):
        if scene.won:
            raise UnsolvedGame(f"won before command {number} of {len(plan)}", where=game)
        if command not in scene.admissible_commands:
            raise UnsolvedGame(f"command {number}, {command!r}, is not admissible", where=game)
        scene = engine.step(command)
    if not scene.won:
        raise UnsolvedGame("not won by its walkthrough", where=game)


# Index ----------------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _read_index(path: str, *version: int) -> tuple[dict[str, Any], dict[Job, GeneratedGame]]:
    """The settings and the games of an index file, read once per ``version`` for all environments of a process."""
    head = json.loads(Path(path).read_text(encoding="utf-8"))
    games = [GeneratedGame(*row) for row in head.pop("games")]
    return head, {(game.split, game.task_type, game.index): game for game in games}


class _Index:
    """``index.json``: the games made under a root, sorted by split, task type and index."""

    def __init__(self, root: Path, size: str, seed: int, text_style: TextStyle = DEFAULT):
        self.root = root
        self.path = root / "index.json"
        self.head: dict[str, object] = {"format": FORMAT, "size": size, "seed": seed, **text_style.index_fields}
        self.games: dict[Job, GeneratedGame] = {}
        try:
            stat = os.stat(self.path)
            head, games = _read_index(str(self.path), stat.st_mtime_ns, stat.st_size, stat.st_ino)
            self.games = dict(games) if head == self.head else {}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            log.warning("%s is damaged (%s); checking the games themselves", self.path, reason)

    def lookup(self, jobs: list[Job]) -> list[GeneratedGame] | None:
        """The games of ``jobs``, or None unless all are on disk and unchanged since they were checked."""
        try:
            games = [self.games[job] for job in jobs]
            stats = [os.stat(f"{self.root}/{game.split}/{game.id}/{GAME}") for game in games]
        except (KeyError, OSError, ValueError):
            return None
        same = all((s.st_size, s.st_mtime_ns) == (g.size, g.mtime_ns) for s, g in zip(stats, games, strict=True))
        return games if same else None

    def store(self, games: list[GeneratedGame]) -> None:
        self.games |= {(game.split, game.task_type, game.index): game for game in games}
        rows = [list(vars(game).values()) for _, game in sorted(self.games.items())]
        with durable.replacing(self.path, flushed=False) as fresh:
            fresh.write_text(json.dumps({**self.head, "games": rows}), encoding="utf-8")
