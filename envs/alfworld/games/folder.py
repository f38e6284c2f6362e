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
    """A row of the cache: one folder of a game.

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
class GameScan:
    """The games of a split. skipped: reason -> folders below the split."""

    tasks: TaskSet
    skipped: dict[str, list[str]]

    def __str__(self) -> str:
        skipped = ", ".join(f"{len(ids)} {reason}" for reason, ids in self.skipped.items())
        return f"{len(self.tasks)} games" + (f"; left out, as alfworld does: {skipped}" if skipped else "")


def find_games(root: Path, split: str, task_types: Collection[str] = TASK_TYPES) -> GameScan:
    """The games of ``root/split`` that alfworld lists for ``task_types``, and the ones it skips.

    Skipped are folders with movable receptacles or slicing, of another type, or without a game file, and games that are
    not marked solvable; linked folders are not entered. Skipped games are read no further, so they may be damaged. The
    result is logged, as a warning if it is new.

    Raises: :class:`NoGames` for a missing folder, ``BrokenGame`` for a file that cannot be read or lacks a field.
    """
    folder = Path(root) / split
    if not folder.is_dir():
        raise NoGames(
            f"there is no folder {folder}",
            key="games",
            advice=(
                "name a folder that holds one folder of games per split (the released games: run "
                "`alfworld-download`), or leave `games` out to have games generated"
            ),
        )
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    cache = data_folder() / "alfworld" / "manifests" / f"{name}.json"
    cached_rows = _cached(cache)
    rows: dict[str, list[object]] = {}
    skipped: dict[str, list[str]] = {}
    tasks: list[Task] = []
    trials = [path for path, _, files in os.walk(folder) if TRAJECTORY in files]
    for id in sorted(Path(path).relative_to(folder).as_posix() for path in trials):
        reason = ""
        if "movable" in id or "Sliced" in id:  # alfworld decides by the name of the folder, not by the game
            reason = "with movable receptacles or slicing"
        if not reason:
            row = _trial(folder / id, cached_rows.get(id))
            rows[id] = list(row)
            reason = row.reason if row.type in task_types else "of another type"
        if reason:
            skipped.setdefault(reason, []).append(id)
        else:
            tasks.append(Task(id, split, row.type, row.digest, str(folder / id / GAME)))
    scan = GameScan(TaskSet(split, tasks, advice=f"No solvable game of the wanted types lies in {folder}."), skipped)
    log.log(logging.WARNING if rows != cached_rows and skipped else logging.INFO, "%s: %s", folder, scan)
    if rows != cached_rows:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_text(cache, json.dumps({"format": _FORMAT, "games": rows}))
    return scan


def _trial(folder: Path, cached_row: object) -> Trial:
    """The trial in ``folder``; ``cached_row`` is its entry in the cache, if any."""
    stamps = [_stamp(folder / TRAJECTORY), _stamp(folder / GAME)]
    if isinstance(cached_row, list) and cached_row[:1] == [stamps]:
        return Trial(*cached_row)
    data, _ = read_json(folder / TRAJECTORY)
    if not isinstance(data, dict) or "task_type" not in data:
        raise BrokenGame("the field 'task_type' is missing", key="task_type", where=folder / TRAJECTORY)
    task_type = str(data["task_type"])
    if task_type not in TASK_TYPES:
        return Trial(stamps, task_type, "of another type", "")
    if stamps[1] is None:
        return Trial(stamps, task_type, "without a game file", "")
    game, _ = read_json(folder / GAME)
    reason = _unsolvable(game)
    if reason:
        return Trial(stamps, task_type, reason, "")
    return Trial(stamps, task_type, "", read_game(folder / GAME)["digest"])


def _unsolvable(game: object) -> str:
    """Why alfworld would skip the content of a game file, or an empty string.

    alfworld tests ``"solvable" not in game``, which also holds for a list or a text. Of other contents it says nothing;
    :func:`read_game` rejects them.
    """
    if isinstance(game, dict):
        solvable = game.get("solvable")
    elif isinstance(game, list | str):
        solvable = None
    else:
        return ""
    if solvable:
        return ""
    if solvable is None:
        return "not marked solvable or unsolvable"
    return "not solvable"


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
