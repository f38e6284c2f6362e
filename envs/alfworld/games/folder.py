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
from typing import TypedDict

from gagpo.base.durable import write_text
from gagpo.base.errors import GagpoError
from gagpo.envs.alfworld.engine import BrokenGame, read_game, read_json
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.gamefile import GAME, TRAJECTORY
from gagpo.envs.alfworld.games.generate import data_root
from gagpo.envs.tasks import Task, TaskSet

_FORMAT = 2
UNREAD = "unread"

log = logging.getLogger(__name__)


class TrialRow(TypedDict):
    """The cached result for a trial: stamps of its files, its type and, once it was read, ``solvable`` and digest."""

    trajectory: list[int] | None
    game: list[int] | None
    type: str
    solvable: bool | str | None
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
    cache = data_root() / "alfworld" / "manifests" / f"{name}.json"
    known = _cached(cache)
    rows: dict[str, TrialRow] = {}
    skipped: dict[str, list[str]] = {}
    tasks: list[Task] = []
    trials = [path for path, _, files in os.walk(folder) if TRAJECTORY in files]
    for id in sorted(Path(path).relative_to(folder).as_posix() for path in trials):
        reason = "with movable receptacles or slicing" if "movable" in id or "Sliced" in id else ""
        if not reason:
            row = rows[id] = _row(folder / id, known.get(id), task_types)
            reason = _reason(row, task_types)
        if reason:
            skipped.setdefault(reason, []).append(id)
        else:
            tasks.append(Task(id, split, row["type"], row["digest"], str(folder / id / GAME)))
    found = FoundGames(TaskSet(split, tasks, advice=f"No solvable game of the wanted types lies in {folder}."), skipped)
    log.log(logging.WARNING if rows != known and skipped else logging.INFO, "%s: %s", folder, found)
    if rows != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_text(cache, json.dumps({"format": _FORMAT, "games": rows}))
    return found


def _row(trial: Path, known: TrialRow | None, task_types: Collection[str]) -> TrialRow:
    """The result for a trial; ``known`` is the cached one."""
    known = known or TrialRow(trajectory=None, game=None, type="", solvable=UNREAD, digest="")
    trajectory, game = _stamp(trial / TRAJECTORY), _stamp(trial / GAME)
    unchanged = trajectory is not None and known["trajectory"] == trajectory
    kind = known["type"] if unchanged else _task_type(trial / TRAJECTORY)
    solvable, digest = (known["solvable"], known["digest"]) if known["game"] == game else (UNREAD, "")
    if solvable == UNREAD and game is not None and kind in task_types:
        solvable, digest = _verdict(trial / GAME)
    return TrialRow(trajectory=trajectory, game=game, type=kind, solvable=solvable, digest=digest)


def _reason(row: TrialRow, task_types: Collection[str]) -> str:
    """Why a trial is skipped, or an empty string."""
    if row["type"] not in task_types:
        return "of another type"
    if row["game"] is None:
        return "without a game file"
    if row["solvable"] is None:
        return "not marked solvable or unsolvable"
    return "" if row["solvable"] else "not solvable"


def _stamp(path: Path) -> list[int] | None:
    try:
        stat = path.stat()
    except OSError:  # as for os.path.exists, a dangling link is a missing file
        return None
    return [stat.st_size, stat.st_mtime_ns]


def _task_type(trajectory: Path) -> str:
    data, _ = read_json(trajectory)
    if not isinstance(data, dict) or "task_type" not in data:
        raise BrokenGame(f"{trajectory}: the field 'task_type' is missing")
    return str(data["task_type"])


def _verdict(path: Path) -> tuple[bool | None, str]:
    """Whether a game is solvable (None: not marked), and its digest."""
    data, _ = read_json(path)
    if isinstance(data, list | str) or (isinstance(data, dict) and "solvable" not in data):
        return None, ""
    if isinstance(data, dict) and not data["solvable"]:
        return False, ""
    return True, read_game(path)["digest"]


def _cached(cache: Path) -> dict[str, TrialRow]:
    fields = {"trajectory", "game", "type", "solvable", "digest"}
    try:
        data = json.loads(cache.read_text(encoding="utf-8"))
        games: dict[str, TrialRow] = data["games"]
        if data["format"] == _FORMAT and all(
            row.keys() == fields and isinstance(row["type"], str) and isinstance(row["digest"], str)
            for row in games.values()
        ):
            return games
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # missing or damaged: everything is read again
    return {}
