"""Folders of games as task sets: the released ones, generated ones, or anybody's in the same layout.

A split is a folder; a game is a folder below it that holds ``game.tw-pddl`` and ``traj_data.json``; its task id is its
path relative to the split. What a scan finds is remembered on disk, so that only new and changed files are read again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gagpo.envs.alfworld.engine import BrokenGame, read_game
from gagpo.envs.alfworld.games.catalogue import TASK_TYPES
from gagpo.envs.alfworld.games.gamefile import GAME, TRAJECTORY
from gagpo.envs.alfworld.games.generate import data_root
from gagpo.envs.errors import GagpoError
from gagpo.envs.tasks import Task, TaskSet

_FORMAT = 1


class NoGames(GagpoError, ValueError):
    """A folder of games that is not there; the message says how to get them."""


def official_root() -> Path:
    """Where ``alfworld-download`` puts the released games: ``$ALFWORLD_DATA/json_2.1.1``."""
    return Path(os.environ.get("ALFWORLD_DATA") or "~/.cache/alfworld").expanduser() / "json_2.1.1"


def load_tasks(root: Path, split: str, task_types: Collection[str] = TASK_TYPES) -> TaskSet:
    """The solvable games of ``root/split`` with one of ``task_types``.

    As in alfworld, games with movable receptacles or slicing, without a game file, or not marked solvable are left out.
    Raises :class:`NoGames` for a missing folder and ``BrokenGame`` for a file that cannot be read.
    """
    folder = Path(root) / split
    if not folder.is_dir():
        raise NoGames(
            f"there is no folder {folder}. Name a folder that holds one folder of games per split (the released games: "
            "run `alfworld-download`), or leave `games` out to have games generated"
        )
    rows = _scan(folder)
    tasks = [
        Task(id, split, row["type"], row["digest"], str(folder / id / GAME))
        for id, row in rows.items()
        if row["solvable"] and row["type"] in task_types
    ]
    return TaskSet(split, tasks, advice=f"No solvable game of the wanted types lies in {folder}.")


def _scan(folder: Path) -> dict[str, dict[str, Any]]:
    """id -> size, mtime_ns, type, digest, solvable, for every game below ``folder``."""
    cache = _cache_file(folder)
    known = _remembered(cache)
    rows: dict[str, dict[str, Any]] = {}
    for id, path in sorted(_find(str(folder))):
        stat = os.stat(path)
        row = known.get(id)
        if row is None or row["size"] != stat.st_size or row["mtime_ns"] != stat.st_mtime_ns:
            row = _read(Path(path)) | {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns}
        rows[id] = row
    if rows != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = cache.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({"format": _FORMAT, "games": rows}), encoding="utf-8")
        fresh.replace(cache)
    return rows


def _find(folder: str) -> list[tuple[str, str]]:
    """(id, path of the game file) of every folder that holds both files."""
    found: list[tuple[str, str]] = []
    pending = [""]
    while pending:
        below = pending.pop()
        names: set[str] = set()
        inner: list[str] = []
        with os.scandir(f"{folder}/{below}") as entries:
            for entry in entries:
                if entry.name in (GAME, TRAJECTORY):
                    names.add(entry.name)
                elif not entry.name.startswith(".") and entry.is_dir():
                    inner.append(f"{below}/{entry.name}" if below else entry.name)
        if len(names) == 2:
            if "movable" not in below and "Sliced" not in below:
                found.append((below, f"{folder}/{below}/{GAME}"))
        else:
            pending += inner
    return found


def _read(path: Path) -> dict[str, Any]:
    game = read_game(path)
    trajectory = path.with_name(TRAJECTORY)
    try:
        data = json.loads(trajectory.read_bytes())
        task_type = data["task_type"]
    except OSError as error:
        raise BrokenGame(f"{trajectory}: cannot be read ({error.strerror})") from None
    except json.JSONDecodeError as error:
        raise BrokenGame(f"{trajectory}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except (KeyError, TypeError, ValueError, RecursionError):
        raise BrokenGame(f"{trajectory}: the field 'task_type' is missing") from None
    return {"type": str(task_type), "digest": game["digest"], "solvable": bool(game.get("solvable"))}


def _cache_file(folder: Path) -> Path:
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return data_root() / "alfworld" / "manifests" / f"{name}.json"


def _remembered(cache: Path) -> dict[str, dict[str, Any]]:
    fields = {"size", "mtime_ns", "type", "digest", "solvable"}
    try:
        data = json.loads(cache.read_text(encoding="utf-8"))
        games = data["games"]
        if data["format"] == _FORMAT and all(row.keys() == fields for row in games.values()):
            return games
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass  # no manifest, or not one of ours: everything is read again
    return {}
