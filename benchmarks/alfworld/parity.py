"""Play the same commands in the native engine and in TextWorld and compare every byte of what they say.

    python -m benchmarks.alfworld.parity --steps 2000 [--games FOLDER] [--journal parity.jsonl]

A unit of work is one game in one variant, with several walks. Finished units can be kept in a journal, from which an
interrupted comparison goes on.
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path

from benchmarks.alfworld.variants import VARIANTS, write_variant
from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.engine import Scene, read_game
from gagpo.envs.alfworld.games.generate import generate
from gagpo.envs.alfworld.native.engine import NativeEngine
from gagpo.envs.alfworld.reference.engine import TextWorldEngine

WALKS = ("expert", "random", "busy", "mixed", "garbage")
GARBAGE = (
    "", " ", "\n", "look\n", " look", "\tinventory ", "Look", "HELP", "help me", "examine", "examine nothing",
    "go to", "go to  cabinet 1", "go to cabinet 99", "go to Cabinet 1", "take", "take all", "put", "move", "use",
    "open", "open fridge", "close door", "xyzzy", "north", "quit", "restart", "save", "undo", "\u00a0look\u00a0",
    "go to café 1", "看",
    "#look.feedback#", "{o.name}", "[{r.name}]", "'; drop", "examine {r}", "%s%n", "\x00", "look\x00", "a" * 5000,
    "take apple 1 from apple 1", "move apple 1 to fridge 1", "put apple 1 in/on fridge 1", "-= Welcome =-",
)  # fmt: skip


@dataclass
class GameParity:
    """What came of one game in one variant. mismatches: the first few, with all that is needed to repeat them."""

    game: str
    variant: str
    steps: int = 0
    wins: int = 0
    keys: int = 0
    reference_keys: int = 0
    mismatches: list[dict[str, object]] = field(default_factory=list)
    seconds: float = 0.0


def parity(
    games: Sequence[Path | str] | None = None,
    steps: int = 200_000,
    steps_per_game: int = 500,
    processes: int = 1,
    seed: int = 0,
    variants: Sequence[str] = tuple(VARIANTS),
    journal: Path | None = None,
    patience: float = 900.0,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, object]:
    """Compare the engines over ``steps`` steps (the last game is played to its end) and return counts and mismatches.

    games: game files, or None for 400 generated ones in a temporary folder (one in four with 20-48 receptacles).
    steps_per_game: per game and variant, resets not counted; games are taken in turn, each in the next variant.
    journal: JSON lines of finished units; units found there are not played again. Delete it to begin afresh.
    patience: seconds without a finished unit after which TimeoutError is raised.
    progress: called with steps done and steps to do.
    """
    if steps < 1 or steps_per_game < 10:
        raise InvalidArgument(
            f"steps must be positive and steps_per_game at least 10, got {steps} and {steps_per_game}", key="steps"
        )
    unknown = [name for name in variants if name not in VARIANTS]
    if unknown or not variants:
        raise InvalidArgument(
            f"unknown variant {unknown[:1]}", key="variants", advice=f"choose among {', '.join(VARIANTS)}"
        )
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="parity-"))
    try:
        files = {str(game): Path(game) for game in games} if games is not None else _generated(folder, seed)
        if not files:
            raise InvalidArgument("there are no games to compare")
        done = _read_journal(journal)
        steps_per_game = min(steps_per_game, max(steps, 10))
        jobs = _jobs(list(files), variants, steps, steps_per_game)
        units = [done[job] for job in jobs if job in done]
        missing = [(game, str(files[game]), variant) for game, variant in jobs if (game, variant) not in done]
        for unit in _played(missing, steps_per_game, seed, processes, patience):
            # Written down before it is counted: an interrupted comparison goes on from there.
            units.append(unit)
            if journal is not None:
                with journal.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(unit)) + "\n")
            if progress is not None:
                progress(sum(u.steps for u in units), len(jobs) * steps_per_game)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    mismatches = [mismatch for unit in units for mismatch in unit.mismatches]
    return {
        "steps": sum(unit.steps for unit in units),
        "games": len({unit.game for unit in units}),
        "units": len(units),
        "wins": sum(unit.wins for unit in units),
        "state_keys": sum(unit.keys for unit in units),
        "reference_state_keys": sum(unit.reference_keys for unit in units),
        "mismatches": len(mismatches),
        "first_mismatches": mismatches[:5],
        "steps_by_variant": {name: sum(u.steps for u in units if u.variant == name) for name in variants},
        "seconds": round(time.monotonic() - started, 1),
    }


def _generated(folder: Path, seed: int) -> dict[str, Path]:
    """400 games of all task types, made from ``seed``, by names that are the same every time."""
    found = {}
    for size, count in (("full", 100), ("small", 300)):
        counts = {"train": count, "valid_seen": 0, "valid_unseen": 0}
        root = folder / size
        made = generate(size, seed, counts, root=root, splits=("train",))
        for game in made["train"]:
            found[f"seed {seed} {size} {game.id}"] = root / "train" / game.id / "game.tw-pddl"
    return found


Job = tuple[str, str]  # game, variant


def _jobs(games: list[str], variants: Sequence[str], steps: int, steps_per_game: int) -> list[Job]:
    """Every game in one variant, then every game in the next one, until there are enough steps."""
    wanted = -(-steps // steps_per_game)
    jobs = [
        (game, variants[(number + turn) % len(variants)])
        for turn in range(len(variants))
        for number, game in enumerate(games)
    ]
    return jobs[:wanted]


def _read_journal(journal: Path | None) -> dict[Job, GameParity]:
    found: dict[Job, GameParity] = {}
    if journal is not None and journal.exists():
        for number, line in enumerate(journal.read_text(encoding="utf-8").splitlines(), 1):
            try:
                unit = GameParity(**json.loads(line))
            except (ValueError, TypeError):
                raise InvalidArgument(
                    "not a finished unit", where=f"{journal}, line {number}", advice="delete the line or the file"
                ) from None
            found[unit.game, unit.variant] = unit
    return found


def _played(
    jobs: list[tuple[str, str, str]], steps: int, seed: int, processes: int, patience: float
) -> Iterator[GameParity]:
    if processes <= 1:
        for game, path, variant in jobs:
            yield compare_game(game, path, variant, steps, seed)
        return
    context = get_context("spawn")  # TextWorld's planner must not be forked
    yield from _shared(ProcessPoolExecutor(processes, context), 2 * processes, jobs, steps, seed, patience)


def _shared(
    pool: ProcessPoolExecutor, most: int, jobs: list[tuple[str, str, str]], steps: int, seed: int, patience: float
) -> Iterator[GameParity]:
    try:
        waiting: set[Future[GameParity]] = set()
        left = iter(jobs)
        while True:
            # Twice as many jobs as processes are under way, so that none idles and few are lost with an error.
            for game, path, variant in left:
                waiting.add(pool.submit(compare_game, game, path, variant, steps, seed))
                if len(waiting) >= most:
                    break
            if not waiting:
                return
            finished, waiting = wait(waiting, timeout=patience, return_when=FIRST_COMPLETED)
            if not finished:
                raise TimeoutError(f"no game was finished in {patience:.0f} s")
            for future in finished:
                yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@functools.cache
def _pair() -> tuple[NativeEngine, TextWorldEngine]:
    """This process's engines, made once: TextWorld's planner is never quite freed."""
    return NativeEngine(), TextWorldEngine()


def compare_game(game: str, source: str, variant: str, steps: int, seed: int) -> GameParity:
    """Play the game file ``source`` in ``variant`` with all kinds of walks, ``steps`` steps together, and compare."""
    started = time.monotonic()
    unit = GameParity(game, variant)
    native, reference = _pair()
    with tempfile.TemporaryDirectory(prefix="parity-") as folder:
        path = write_variant(Path(source), variant, Path(folder) / "game.tw-pddl")
        plan = list(read_game(path).get("walkthrough") or [])
        keys = Keys()
        length = max(2, steps // len(WALKS))
        while unit.steps < steps and not unit.mismatches:
            for number, kind in enumerate(WALKS):
                # The last walk makes up for those that ended early.
                rng = random.Random(f"{seed} {Path(source).parent.name} {variant} {kind} {unit.steps}")
                walk = Walk(kind, plan, rng)
                count = min(length, steps - unit.steps) if number < len(WALKS) - 1 else steps - unit.steps
                _compare_walk(native, reference, path, walk, count, unit, keys)
                if unit.mismatches or unit.steps >= steps:
                    break
    unit.keys, unit.reference_keys = len(keys.native), len(keys.reference)
    unit.seconds = round(time.monotonic() - started, 2)
    return unit


def _compare_walk(
    native: NativeEngine, reference: TextWorldEngine, path: Path, walk: Walk, steps: int, unit: GameParity, keys: Keys
) -> None:
    commands: list[str] = []
    one, two = native.reset(path), reference.reset(path)
    before: Scene | None = None
    won = False
    while True:
        # Compare, then give both the same command; the first difference ends the walk.
        difference = differences(one, two) or keys.difference(before, commands[-1] if commands else "", one, two)
        if difference:
            unit.mismatches.append(
                {"game": unit.game, "variant": unit.variant, "walk": walk.kind, "commands": commands, **difference}
            )
            return
        if two.won and not won:
            unit.wins += 1
            won = True
        if len(commands) >= steps:
            return
        command = walk.next(two)
        commands.append(command)
        before = one
        one, two = native.step(command), reference.step(command)
        unit.steps += 1


def differences(one: Scene, two: Scene) -> dict[str, object]:
    """What two scenes disagree about, state keys (which each engine makes in its own way) aside."""
    for name in ("observation", "admissible_commands", "won", "done", "score"):
        mine, theirs = getattr(one, name), getattr(two, name)
        if mine != theirs or type(mine) is not type(theirs):
            return {"field": name, "native": mine, "textworld": theirs}
    return {}


class Keys:
    """Checks that equal native state keys have equal futures: the same answer to the same command, and so on."""

    def __init__(self) -> None:
        self._futures: dict[tuple[str | None, str], tuple[str, str | None]] = {}
        self._scenes: dict[str | None, tuple[tuple[str, ...], bool]] = {}
        self.native: set[str | None] = set()
        self.reference: set[str | None] = set()

    def difference(self, before: Scene | None, command: str, one: Scene, two: Scene) -> dict[str, object]:
        """Empty while all is well; ``before`` is the native scene in which ``command`` was given."""
        self.native.add(one.state)
        self.reference.add(two.state)
        scene = (tuple(two.admissible_commands), two.won)
        if self._scenes.setdefault(one.state, scene) != scene:
            return {"field": "state", "native": one.state, "textworld": "two situations with one key"}
        if before is not None:
            future = (two.observation, one.state)
            known = self._futures.setdefault((before.state, command), future)
            if known != future:
                return {"field": "state", "native": before.state, "textworld": [command, known, future]}
        return {}


class Walk:
    """Commands of one kind: see ``WALKS``. The expert goes on at random once its plan is carried out."""

    def __init__(self, kind: str, plan: Sequence[str], rng: random.Random):
        self.kind = kind
        self.plan = list(plan)
        self.rng = rng

    def next(self, scene: Scene) -> str:
        """The command to give in ``scene``."""
        kind = self.kind
        if kind == "mixed":
            kind = self.rng.choice(("expert", "random", "busy", "garbage"))
        if kind == "expert" and self.plan:
            return self.plan.pop(0)
        if kind == "garbage":
            return self._garbage(scene)
        if kind == "busy":
            idle = ("go to ", "examine ", "look", "inventory", "help")
            acting = [command for command in scene.admissible_commands if not command.startswith(idle)]
            if acting and self.rng.random() < 0.7:
                return self.rng.choice(acting)
        return self.rng.choice(scene.admissible_commands)

    def _garbage(self, scene: Scene) -> str:
        command = self.rng.choice(scene.admissible_commands)
        spoilt = (
            command.upper(), f"  {command}\n", f"{command} please", command[:-1], command.replace(" ", "  "),
            command.replace("1", "2"), command.replace("go to", "open"), command.replace("examine", "take"),
        )  # fmt: skip
        return self.rng.choice((self.rng.choice(GARBAGE), self.rng.choice(spoilt), command))


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the native ALFWorld engine with TextWorld, byte by byte.")
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--games", type=Path, help="a folder of games; 400 are generated by default")
    parser.add_argument("--journal", type=Path, help="continue where this file ends; one line per game")
    options = parser.parse_args()
    games = None if options.games is None else sorted(options.games.rglob("game.tw-pddl"))

    def show(done: int, total: int) -> None:
        print(f"{done:,} of {total:,} steps", file=sys.stderr, end="\r", flush=True)

    report = parity(
        games,
        options.steps,
        processes=options.processes,
        seed=options.seed,
        journal=options.journal,
        progress=show,
    )
    print(json.dumps(report, indent=1))
    return bool(report["mismatches"])


if __name__ == "__main__":
    raise SystemExit(main())
