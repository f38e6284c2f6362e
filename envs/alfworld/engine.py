"""What plays a game: the protocol that every ALFWorld engine keeps, and the one place that chooses among them."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Required, TypedDict, cast

from gagpo.base.errors import GagpoError, InvalidArgument

Snapshot = dict[str, list[list[str]]]  # facts that are ``new``, and those that are ``gone``

DEFAULT_ENGINE = "native"
ENGINES = ("native", "textworld")


class BrokenGame(GagpoError, ValueError):
    """A game file that cannot be read or played; the message names the file and the place."""


@dataclass(frozen=True)
class Scene:
    """The world after a reset or a command, as an engine reports it.

    observation: the text of the game, byte for byte, banner included.
    admissible_commands: sorted, each once.
    done: the game is over (won, in ALFWorld). score: 1 when won, else 0.
    state: key of the exact world state (equal keys = equal futures), None where the engine cannot tell.
    """

    observation: str
    admissible_commands: list[str]
    won: bool = False
    done: bool = False
    score: int = 0
    state: str | None = None


class GameEngine(Protocol):
    """Plays one game at a time. ``reset`` may be called with another game, or the same, at any moment.

    can_restore: whether it can be put back into a state of the game that it was in; others raise CannotRestore.
    """

    can_restore: ClassVar[bool]

    def reset(self, game: Path) -> Scene:
        """Start ``game`` (a ``game.tw-pddl`` file); raises :class:`BrokenGame`."""

    def step(self, command: str) -> Scene:
        """Carry out any string whatsoever; what is not an admissible command changes nothing."""

    def snapshot(self) -> Snapshot:
        """How the world differs now from the start of its game."""

    def resume(self, snapshot: Snapshot) -> Scene:
        """Make the world differ so from the start of its game, right after ``reset``; the text is left empty."""

    def close(self) -> None:
        """Free what the engine holds; calling it again does nothing."""


def make_engine(name: str = DEFAULT_ENGINE) -> GameEngine:
    """The engine called ``name``: ``native``, or ``textworld`` (the reference; needs alfworld's dependencies)."""
    if name == "textworld":
        if sys.version_info >= (3, 13):  # its text generator changes locals(), which PEP 667 made a copy
            raise InvalidArgument(
                "the reference engine needs Python 3.12 or older (textworld's text generator breaks on 3.13); "
                "take engine native, which says the same words"
            )
        from gagpo.envs.alfworld.reference.textworld import TextWorldEngine

        return TextWorldEngine()
    if name == "native":
        from gagpo.envs.alfworld.native.engine import NativeEngine

        return NativeEngine()
    raise InvalidArgument(f"there is no ALFWorld engine {name!r}; choose one of {', '.join(ENGINES)}")


_FIELDS = ("pddl_domain", "grammar", "pddl_problem")


class GameData(TypedDict, total=False):
    """The fields of a game file that are of use here; a file may hold more."""

    pddl_domain: Required[str]
    grammar: Required[str]
    pddl_problem: Required[str]
    digest: str
    walkthrough: list[str]


_LARGEST = 5_000_000  # bytes; the largest released game has 150 kB


def read_json(path: Path) -> tuple[object, bytes]:
    """What a JSON file of a game holds, and its bytes; :class:`BrokenGame` names the file and the place."""
    try:
        size = path.stat().st_size
        if size > _LARGEST:
            raise BrokenGame(f"{path}: {size} bytes; a game has at most {_LARGEST}")
        content = path.read_bytes()
        return json.loads(content), content
    except OSError as error:
        raise BrokenGame(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise BrokenGame(f"{path}: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BrokenGame(f"{path}, line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise BrokenGame(f"{path}: JSON nested too deeply") from None
    except ValueError as error:  # an integer of more than 4,300 digits
        raise BrokenGame(f"{path}: not JSON ({error})") from None


def read_game(path: Path) -> GameData:
    """The fields of a game file, checked for presence and type, and ``digest``, the SHA-256 of its bytes.

    Raises :class:`BrokenGame`.
    """
    data, content = read_json(path)
    if not isinstance(data, dict):
        raise BrokenGame(f"{path}: a game is a JSON object, found {type(data).__name__}")
    for field in _FIELDS:
        if not isinstance(data.get(field), str):
            raise BrokenGame(f"{path}: the field {field!r} is missing or not a string")
    return cast(GameData, {**data, "digest": hashlib.sha256(content).hexdigest()})
