"""Game files, and the scenes that an engine returns."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Required, TypedDict, cast

from gagpo.base.errors import GagpoError

NOTHING_HAPPENS = "Nothing happens."


class BrokenGame(GagpoError, ValueError):
    """A game file that cannot be read or run; the message names the file and the place."""


@dataclass(frozen=True)
class Scene:
    """What an engine returns after a reset or a command.

    observation: the text of the game, with its banner.
    admissible_commands: sorted, without duplicates.
    done: the game is over (in ALFWorld: won).
    score: 1 if won, else 0.
    state: key of the exact state; equal keys have equal futures.
    """

    observation: str
    admissible_commands: list[str]
    won: bool = False
    done: bool = False
    score: int = 0
    state: str | None = None


class GameEngine(Protocol):
    """Runs one ``game.tw-pddl`` file at a time."""

    def reset(self, game: Path) -> Scene:
        """Start ``game``; raises :class:`BrokenGame`."""

    def step(self, command: str) -> Scene:
        """Carry out ``command``; one that is not admissible changes nothing. RuntimeError before the first reset."""

    def close(self) -> None:
        """Release the game."""


_FIELDS = ("pddl_domain", "grammar", "pddl_problem")


class GameData(TypedDict, total=False):
    """The fields of a game file that an engine reads; a file may have more.

    pddl_domain: the actions, in PDDL.
    grammar: commands and texts, in TextWorld's grammar language; the task text is one of its rules.
    pddl_problem: objects, initial facts and goal, in PDDL.
    digest: SHA-256 of the file, added when it is read.
    walkthrough: commands that win the game.
    """

    # Traps of the format: the agent's verb is decided by each game's grammar ("move O to R", before alfworld 0.4
    # "put O in/on R"), names are mangled ids whose numbers exist in texts only, and the goal in PDDL never contains the
    # sentence that the agent reads. The task type stands in traj_data.json, not here.

    pddl_domain: Required[str]
    grammar: Required[str]
    pddl_problem: Required[str]
    digest: str
    walkthrough: list[str]


MAX_FILE_BYTES = 5_000_000  # the largest released game has 150 kB


def read_json(path: Path) -> tuple[object, bytes]:
    """The content of a JSON file of a game, and its bytes; raises :class:`BrokenGame` with file and place."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise BrokenGame(f"{size} bytes", where=path, advice=f"a game has at most {MAX_FILE_BYTES}")
        content = path.read_bytes()
        return json.loads(content), content
    except OSError as error:
        raise BrokenGame(f"cannot be read ({error.strerror})", where=path) from None
    except UnicodeDecodeError as error:
        raise BrokenGame(f"byte {error.start} is not UTF-8", where=path) from None
    except json.JSONDecodeError as error:
        raise BrokenGame(
            f"not JSON ({error.msg})", where=f"{path}, line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise BrokenGame("JSON nested too deeply", where=path) from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise BrokenGame(f"not JSON ({error})", where=path) from None


def read_game(path: Path) -> GameData:
    """The fields of a game file, with ``digest``, the SHA-256 of its bytes; raises :class:`BrokenGame`."""
    data, content = read_json(path)
    if not isinstance(data, dict):
        raise BrokenGame(f"a game is a JSON object, found {type(data).__name__}", where=path)
    for field in _FIELDS:
        if not isinstance(data.get(field), str):
            raise BrokenGame(f"the field {field!r} is missing or not a string", where=path)
    return cast(GameData, {**data, "digest": hashlib.sha256(content).hexdigest()})
