"""Making games: files for a seed, each played to its end in the engine before it counts.

Games lie in ``<root>/<split>/<goal>/<trial>/game.tw-pddl``; ``<root>/index.json`` remembers which have been made, so
that the next call is a matter of looking at file sizes and times. Making can be interrupted at any moment and goes on
where it stopped; of several processes that want the same games, one makes them and the others wait.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from gagpo.base import durable
from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.envs.alfworld.games.catalogue import SIZES, TASK_TYPES
from gagpo.envs.alfworld.games.draws import Draws
from gagpo.envs.alfworld.games.gamefile import GAME, TRAJECTORY, GameFiles, render
from gagpo.envs.alfworld.games.phrasings import DEFAULT, Phrasing, human_text
from gagpo.envs.alfworld.games.scenes import pose
from gagpo.envs.alfworld.games.shipped import shipped
from gagpo.envs.alfworld.native.engine import NativeEngine

log = logging.getLogger(__name__)

SPLITS = ("train", "valid_seen", "valid_unseen")
DEFAULT_COUNTS = {"train": 300, "valid_seen": 72, "valid_unseen": 72}
FORMAT = 1  # of the generator: a higher number makes other games


class UnsolvedGame(GagpoError, RuntimeError):
    """A generated game that its own walkthrough does not win: a fault of the generator or of the engine."""


@dataclass(frozen=True)
class MadeGame:
    """A game that is there. id: its folder relative to the split; digest: SHA-256 of the game file."""

    split: str
    task_type: str
    index: int
    id: str
    digest: str
    size: int
    mtime_ns: int


def data_root() -> Path:
    """Where generated data goes: ``$GAGPO_DATA``, or ``data`` in the current folder."""
    return Path(os.environ.get("GAGPO_DATA") or "data")


def default_root(size: str, seed: int, phrasing: Phrasing = DEFAULT) -> Path:
    """The folder of the games that are generated from ``seed``."""
    return data_root() / "alfworld" / f"{size}-seed{seed}{phrasing.suffix}"


def generate(
    size: str = "small",
    seed: int = 0,
    counts: Mapping[str, int] | None = None,
    task_types: Sequence[str] = TASK_TYPES,
    root: Path | None = None,
    splits: Sequence[str] = SPLITS,
    patience: float = 3600.0,
    phrasing: Phrasing = DEFAULT,
) -> dict[str, list[MadeGame]]:
    """Make the games of ``splits`` that are missing under ``root`` and name all that were asked for.

    counts: games per split, shared evenly among ``task_types``; those not named as in :data:`DEFAULT_COUNTS`, but
        never more valid_seen than train games.
    patience: seconds to wait for another process that is making games here.
    phrasing: the verb and the task texts; rooms and goals do not depend on it.

    Raises ValueError for a bad argument, TimeoutError when patience ends, :class:`UnsolvedGame`, and
    :class:`gagpo.envs.alfworld.games.shipped.AlfworldMissing`.
    """
    jobs = wanted(size, counts, task_types, splits)
    root = root if root is not None else default_root(size, seed, phrasing)
    made = _Index(root, size, seed, phrasing).lookup(jobs)
    if made is None:
        root.mkdir(parents=True, exist_ok=True)
        with _turn_to_make(root, patience):
            index = _Index(root, size, seed, phrasing)
            made = index.lookup(jobs)
            if made is None:
                made = _make(root, _GameSource(size, seed, phrasing), jobs)
                index.store(made)
    return {split: [game for game in made if game.split == split] for split in splits}


def _turn_to_make(root: Path, patience: float) -> AbstractContextManager[object]:
    """Of all processes that make games under ``root``, one at a time; the system frees the lock of one that dies."""
    lock = FileLock(root / ".lock")
    try:
        return lock.acquire(blocking=False)
    except Timeout:
        log.warning("waiting for another process that makes ALFWorld games in %s", root)
    try:
        return lock.acquire(patience)
    except Timeout:
        raise TimeoutError(f"{root}: another process has been making games here for {patience:g} s") from None


Job = tuple[str, str, int]  # split, task type, index


def wanted(
    size: str, counts: Mapping[str, int] | None, task_types: Sequence[str], splits: Sequence[str] = SPLITS
) -> list[Job]:
    """The games that these settings name, sorted; ValueError when the settings make no sense."""
    full = DEFAULT_COUNTS | dict(counts or {})
    if "valid_seen" not in (counts or {}):
        full["valid_seen"] = max(0, min(full["valid_seen"], full["train"]))
    if size not in SIZES:
        raise InvalidArgument(f"there is no scene size {size!r}; choose one of {', '.join(SIZES)}")
    for split in (*full, *splits):
        if split not in SPLITS:
            raise InvalidArgument(f"ALFWorld has no split {split!r}; choose among {', '.join(SPLITS)}")
    for split, count in full.items():
        if count < 0:
            raise InvalidArgument(f"the number of {split} games must not be negative, got {count}")
    if not task_types:
        raise InvalidArgument(f"no task types were given; choose among {', '.join(TASK_TYPES)}")
    for task_type in task_types:
        if task_type not in TASK_TYPES:
            raise InvalidArgument(f"there is no task type {task_type!r}; choose among {', '.join(TASK_TYPES)}")
    if full["valid_seen"] > full["train"]:
        raise InvalidArgument(
            f"valid_seen ({full['valid_seen']}) must not have more games than train ({full['train']}): "
            "its rooms are those trained in"
        )
    types = [task_type for task_type in TASK_TYPES if task_type in task_types]
    jobs: list[Job] = []
    for split in splits:
        each, rest = divmod(full[split], len(types))
        jobs += [(split, kind, k) for place, kind in enumerate(types) for k in range(each + (place < rest))]
    return sorted(jobs)


# Making ---------------------------------------------------------------------------------------------------------------


def files_of(size: str, seed: int, job: Job, phrasing: Phrasing = DEFAULT) -> GameFiles:
    """The files of one game. Task texts, rooms and objects depend on these arguments only."""
    split, task_type, index = job
    source = shipped()
    problem = pose(source, seed, size, split, task_type, index)
    if phrasing.human(index):
        draws = Draws("text", size, seed, split, task_type, index)
        text = human_text(draws, task_type, problem.wanted, problem.target, problem.toggle)
        problem = replace(problem, text=text)
    return render(source, problem, f"trial_{size}_s{seed}_{split}_{index:05d}", phrasing.puts(index))


@dataclass(frozen=True)
class _GameSource:
    """What names all games of a folder but for split, task type and index."""

    size: str
    seed: int
    phrasing: Phrasing

    def files(self, job: Job) -> GameFiles:
        return files_of(self.size, self.seed, job, self.phrasing)


def _make(root: Path, source: _GameSource, jobs: list[Job]) -> list[MadeGame]:
    for old in root.glob(".*.part"):  # left by a process that was killed; this one holds the lock
        shutil.rmtree(old, ignore_errors=True)
    made: list[MadeGame] = []
    missing: list[Job] = []
    for job in jobs:
        game = _found(root, job, source.files(job))
        if game is None:
            missing.append(job)
        else:
            made.append(game)
    if missing:
        log.warning("making %d %s ALFWorld games in %s (done once)", len(missing), source.size, root)
    engine = NativeEngine()
    made += [_make_one(root, source, job, engine) for job in missing]
    return sorted(made, key=lambda game: (game.split, game.task_type, game.index))


def _found(root: Path, job: Job, files: GameFiles) -> MadeGame | None:
    """The game when it is there with exactly the right content."""
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
    return MadeGame(*job, files.folder, hashlib.sha256(content).hexdigest(), stat.st_size, stat.st_mtime_ns)


def _make_one(root: Path, source: _GameSource, job: Job, engine: NativeEngine) -> MadeGame:
    files = source.files(job)
    # Not beside its place: alfworld's rules find games in hidden folders too.
    with durable.replacing_folder(root / job[0] / files.folder, flushed=False, within=root) as fresh:
        (fresh / GAME).write_bytes(files.game.encode())
        (fresh / TRAJECTORY).write_bytes(files.trajectory.encode())
        play(engine, fresh / GAME, files.plan)
    game = _found(root, job, files)
    assert game is not None
    return game


def play(engine: NativeEngine, game: Path, plan: Sequence[str]) -> None:
    """Play ``plan``; raises :class:`UnsolvedGame` unless every command is admissible and exactly the last one wins."""
    scene = engine.reset(game)
    for number, command in enumerate(plan, 1):
        # A plan is proven step by step: no command may be refused, and none may follow the victory.
        if scene.won:
            raise UnsolvedGame(f"{game}: won before command {number} of {len(plan)}")
        if command not in scene.admissible_commands:
            raise UnsolvedGame(f"{game}: command {number}, {command!r}, is not admissible")
        scene = engine.step(command)
    if not scene.won:
        raise UnsolvedGame(f"{game}: not won by its walkthrough")


# Remembering ----------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4)
def _read_index(path: str, *version: int) -> tuple[dict[str, Any], dict[Job, MadeGame]]:
    """An index file as read last, until ``version`` changes: a hundred environments of one process read it once."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    games = [MadeGame(*row) for row in data["games"]]
    kinds = [str, str, int, str, str, int, int]
    if any([type(value) for value in vars(game).values()] != kinds or "\0" in game.id for game in games):
        raise ValueError("a row is not a game's")
    return data, {(game.split, game.task_type, game.index): game for game in games}


class _Index:
    """``index.json``: the games made under a root, in the order of their index per split and task type."""

    def __init__(self, root: Path, size: str, seed: int, phrasing: Phrasing = DEFAULT):
        self.root = root
        self.path = root / "index.json"
        self.head: dict[str, object] = {"format": FORMAT, "size": size, "seed": seed, **phrasing.head}
        self.games: dict[Job, MadeGame] = {}
        try:
            stat = os.stat(self.path)
            data = _read_index(str(self.path), stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if {key: data[0][key] for key in self.head} == self.head:
                self.games = dict(data[1])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            log.warning("%s is damaged (%s); the games themselves are looked at", self.path, reason)

    def lookup(self, jobs: list[Job]) -> list[MadeGame] | None:
        """The games of ``jobs`` if all are there and untouched since they were checked."""
        try:
            found = [self.games[job] for job in jobs]
            root = str(self.root)
            for game in found:
                stat = os.stat(f"{root}/{game.split}/{game.id}/{GAME}")
                if (stat.st_size, stat.st_mtime_ns) != (game.size, game.mtime_ns):
                    return None
        except (KeyError, OSError):
            return None
        return found

    def store(self, made: list[MadeGame]) -> None:
        self.games |= {(game.split, game.task_type, game.index): game for game in made}
        rows = [list(vars(game).values()) for _, game in sorted(self.games.items())]
        with durable.replacing(self.path, flushed=False) as fresh:
            fresh.write_text(json.dumps({**self.head, "games": rows}), encoding="utf-8")
