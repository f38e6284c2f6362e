"""Folders of games as task sets: released games, or others in the same layout.

A split is a folder; a game is a folder below it with ``traj_data.json`` and ``game.tw-pddl``; its task id is its path
relative to the split. Games are skipped by alfworld's rules. The result of a scan is cached on disk, so that only new
and changed files are read again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gagpo.base.durable import write_text
from gagpo.base.errors import GagpoError
from gagpo.base.folders import data_folder
from gagpo.envs.alfworld.engine import BrokenGame, read_game, read_json
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.gamefile import GAME, TRAJECTORY
from gagpo.envs.tasks import Task, TaskSet

_FORMAT = 3

log = logging.getLogger(__name__)


class Trial(NamedTuple):
    """What is known of a trial, as it is cached.

    stamps: size and time of its two files; None for a missing one.
    reason: why it is skipped, or an empty string.
    """

    stamps: list[list[int] | None]
    type: str
    reason: str
    digest: str


class NoGames(GagpoError, ValueError):
    """A folder of games that does not exist; the message says how to get the games."""


def official_root() -> Path:
    """Where ``alfworld-download`` puts the released games: ``$ALFWORLD_DATA/json_2.1.1``."""
    return Path(os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser() / "json_2.1.1"


@dataclass(frozen=True)
class FoundGames:
    """The games of a split. skipped: reason -> folders below the split."""

    tasks: TaskSet
    skipped: dict[str, list[str]]

    def __str__(self) -> str:
        left_out = ", ".join(f"{len(ids)} {reason}" for reason, ids in self.skipped.items())
        return f"{len(self.tasks)} games" + (f"; left out, as alfworld does: {left_out}" if left_out else "")


def find_games(root: Path, split: str, task_types: Collection[str] = TASK_TYPES) -> FoundGames:
    """The games of ``root/split`` that alfworld lists for ``task_types``, and the ones it skips.

    Skipped are folders with movable receptacles or slicing, of another type, or without a game file, and games that are
    not marked solvable; linked folders are not entered. Skipped games are read no further, so they may be damaged. The
    result is logged, as a warning if it is new.

    Raises: :class:`NoGames` for a missing folder, ``BrokenGame`` for a file that cannot be read or lacks a field.
    """
    folder = Path(root) / split
    if not folder.is_dir():
        raise NoGames(
            f"there is no folder {folder}. Name a folder that holds one folder of games per split (the released games: "
            "run `alfworld-download`), or leave `games` out to have games generated"
        )
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    cache = data_folder() / "alfworld" / "manifests" / f"{name}.json"
    known = _cached(cache)
    rows: dict[str, list[object]] = {}
    skipped: dict[str, list[str]] = {}
    tasks: list[Task] = []
    trials = [path for path, _, files in os.walk(folder) if TRAJECTORY in files]
    for id in sorted(Path(path).relative_to(folder).as_posix() for path in trials):
        reason = "with movable receptacles or slicing" if "movable" in id or "Sliced" in id else ""
        if not reason:
            row = _trial(folder / id, known.get(id))
            rows[id] = list(row)
            reason = row.reason if row.type in task_types else "of another type"
        if reason:
            skipped.setdefault(reason, []).append(id)
        else:
            tasks.append(Task(id, split, row.type, row.digest, str(folder / id / GAME)))
    found = FoundGames(TaskSet(split, tasks, advice=f"No solvable game of the wanted types lies in {folder}."), skipped)
    log.log(logging.WARNING if rows != known and skipped else logging.INFO, "%s: %s", folder, found)
    if rows != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_text(cache, json.dumps({"format": _FORMAT, "games": rows}))
    return found


def _trial(folder: Path, known: object) -> Trial:
    """The trial in ``folder``; ``known`` is what is cached of it."""
    stamps = [_stamp(folder / TRAJECTORY), _stamp(folder / GAME)]
    if isinstance(known, list) and known[:1] == [stamps]:
        return Trial(*known)
    data, _ = read_json(folder / TRAJECTORY)
    if not isinstance(data, dict) or "task_type" not in data:
        raise BrokenGame(f"{folder / TRAJECTORY}: the field 'task_type' is missing")
    kind = str(data["task_type"])
    if kind not in TASK_TYPES:
        return Trial(stamps, kind, "of another type", "")
    if stamps[1] is None:
        return Trial(stamps, kind, "without a game file", "")
    game, _ = read_json(folder / GAME)
    solvable = game.get("solvable") if isinstance(game, dict) else None if isinstance(game, list | str) else True
    if not solvable:
        return Trial(stamps, kind, "not solvable" if solvable is not None else "not marked solvable or unsolvable", "")
    return Trial(stamps, kind, "", read_game(folder / GAME)["digest"])


def _stamp(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except OSError:  # as for os.path.exists, a dangling link is a missing file
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _cached(cache: Path) -> dict[str, object]:
    try:
        data = json.loads(cache.read_text(encoding="utf-8"))
        return dict(data["games"]) if data["format"] == _FORMAT else {}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}  # missing or damaged: everything is read again
