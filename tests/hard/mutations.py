"""Mutated files of every kind that is read: each is read or refused in one line, without a traceback."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gagpo.base import manifest
from gagpo.data import Episode, Turn, write_episodes
from gagpo.envs.alfworld.env import ALFWorldEnv
from gagpo.envs.base import TextEnv
from gagpo.envs.math.sources import load as load_problems
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.generate import write_catalogue
from gagpo.eval.journal import Journal
from gagpo.interop.export import read_source
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import dump
from gagpo.settings import load as load_settings
from gagpo.training.trainer import Trainer
from tests.hard.mutate import mutate
from tests.hard.outcome import FINE, Tally, attempt, command
from tests.hard.small_run import make_model, make_run, write_settings

COUNTS = {"train": 2, "valid_seen": 1, "valid_unseen": 1}
ROWS = [{"problem": f"What is {i} + {i + 1}?", "answer": str(2 * i + 1), "level": i} for i in range(8)]


@dataclass(frozen=True)
class Kind:
    """One kind of file. ``make`` writes sound ones into a folder, ``files`` (patterns) are those to mutate, and
    ``read`` does with the folder what the project does with such files."""

    name: str
    make: Callable[[Path], object]
    files: tuple[str, ...]
    read: Callable[[Path], object]


def mutations(
    folder: Path,
    count: int,
    seed: int,
    only: int | None = None,
) -> list[Tally]:
    """Read ``count`` mutated files, of all :data:`KINDS` in turn."""
    tallies = {kind.name: Tally(f"mutated: {kind.name}") for kind in KINDS}
    expected = range(count) if only is None else [only]
    for kind in KINDS:
        cases = [case for case in expected if KINDS[case % len(KINDS)] is kind]
        if not cases:
            continue
        begin = time.monotonic()
        full, place = folder / f"{kind.name} whole", folder / kind.name
        place.mkdir(parents=True)
        result = attempt(lambda kind=kind, place=place: _done(kind.make(place)), 600)  # type: ignore[misc]
        sound = attempt(lambda kind=kind, place=place: _done(kind.read(place)))  # type: ignore[misc]
        if result.verdict != FINE or sound.verdict != FINE:
            raise RuntimeError(f"the sound {kind.name} cannot be read: {result.words} {sound.words}")
        shutil.copytree(place, full, symlinks=True)
        files = sorted(
            {path.relative_to(full) for format in kind.files for path in full.glob(format) if path.is_file()}
        )
        for case in cases:
            rng = random.Random(f"{seed}/{case}")
            shutil.rmtree(place)
            shutil.copytree(full, place, symlinks=True)
            file = rng.choice(files)
            how = mutate(place / file, rng)
            outcome = attempt(lambda kind=kind, place=place: _done(kind.read(place)))  # type: ignore[misc]
            tallies[kind.name].add(f"mutations --seed {seed} --only {case} ({how} in {file})", outcome)
        tallies[kind.name].seconds = time.monotonic() - begin
    return [tally for tally in tallies.values() if tally.seconds]


def _done(result: object) -> str:
    return ""


# What is read, and how ------------------------------------------------------------------------------------------------


def _make_run(folder: Path) -> None:
    make_run(folder)
    for file in (folder / "run" / "evals").glob("before-*.json"):
        shutil.copy(file, folder / "other.json")


def _resume_from_state(folder: Path) -> None:
    """As after an edit by hand: the manifest is made to agree, so that the reader itself is on its own."""
    (*_, checkpoint) = sorted((folder / "run" / "checkpoints").iterdir())
    (checkpoint / manifest.NAME).unlink(missing_ok=True)
    manifest.write(checkpoint)
    Trainer(RunFolder.open(folder / "run"), quiet=True)


def _read_model(folder: Path) -> None:
    model = load_model(str(folder / "model"))
    tokenizer = load_tokenizer(str(folder / "model"))
    tokenizer.encode("You stand at 12.")
    assert model is not None


def _play(env: TextEnv, *actions: str) -> None:
    for task in itertools.islice(env.tasks("train").ids, 2):
        env.reset(seed=0, options={"task": task})
        for action in actions:
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
    env.close()


def _in(folder: Path) -> Path:
    os.environ["GAGPO_DATA"] = str(folder)
    return folder


def _shop(folder: Path) -> None:
    _in(folder)
    _play(WebShopEnv(products=20), "search[a]", "click[next >]", "click[buy now]")


def _own_shop(folder: Path) -> None:
    _in(folder)
    _play(WebShopEnv(data=folder / "source"), "search[a]", "click[back to search]")


def _games(folder: Path) -> None:
    _in(folder)
    _play(ALFWorldEnv(counts=COUNTS), "look", "go to bed 1", "inventory")


def _given_games(folder: Path) -> None:
    _in(folder)
    (root,) = (folder / "alfworld").glob("small-*")
    _play(ALFWorldEnv(games=root), "look", "inventory")


def _write_csv(folder: Path) -> None:
    with (folder / "problems.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(ROWS[0]))
        writer.writeheader()
        writer.writerows(ROWS)


def _write_parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), folder / "problems.parquet")


def _write_jsonl(folder: Path) -> None:
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")


def _write_json(folder: Path) -> None:
    (folder / "problems.json").write_text(json.dumps(ROWS), encoding="utf-8")


def _problems(suffix: str) -> Callable[[Path], object]:
    return lambda folder: load_problems(str(folder / f"problems{suffix}"))


def _report(folder: Path) -> None:
    command("report", str(folder / "run"))


def _compare(folder: Path) -> None:
    (after,) = (folder / "run" / "evals").glob("after-*.json")
    command("compare", str(after), str(folder / "other.json"))


def _episodes() -> list[Episode]:
    played = []
    for sample in range(3):
        turns = [Turn("see", "<think>hm</think>go", "go", 0.0), Turn("seen", "y\ud800", "y", 1.0, state="s")]
        info = {"prompt_tokens": 9, "completion_tokens": 3, "cost": 0.5, "verdict": "right"}
        played.append(
            Episode(f"task/{sample}", "kind", "test", 0, sample, 1, 0.4, turns, True, "terminated", 0, info=info)
        )
    return played


def _write_journal(folder: Path) -> None:
    with Journal(folder, {"model": "m", "environment": "gagpo/Math-v0", "split": "test"}) as journal:
        for episode in _episodes():
            journal.append(episode)
        journal.note_spent({"cost": 0.5})


def _export(pattern: str) -> Callable[[Path], object]:
    def read(folder: Path) -> None:
        (source,) = folder.glob(pattern)
        read_source(source)

    return read


def _export_checked(folder: Path) -> None:
    """Make the checksums of a journal agree, as after a careful edit, so that the reader itself is tested."""
    for path in folder.glob("m-*.jsonl"):
        texts = [line.rpartition(b" ")[0] for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(b"%s %08x\n" % (text, zlib.crc32(text)) for text in texts))
    _export("m-*.jsonl")(folder)


def _kinds() -> Iterator[Kind]:
    yield Kind(
        "settings",
        lambda folder: write_settings(folder / "run.yaml", folder / "model"),
        ("run.yaml",),
        lambda folder: dump(load_settings(folder / "run.yaml")),
    )
    yield Kind("metrics", _make_run, ("run/metrics.jsonl",), _report)
    yield Kind("settings of a run", _make_run, ("run/config.yaml", "run/versions.json"), _report)
    yield Kind("episodes", _make_run, ("run/episodes/*",), _report)
    yield Kind("evaluations", _make_run, ("run/evals/*.json", "other.json"), _compare)
    yield Kind("state of a checkpoint", _make_run, ("run/checkpoints/*/state.json",), _resume_from_state)
    yield Kind("models", make_model, ("model/*",), _read_model)
    yield Kind("built shops", _shop, ("webshop/**/*",), _shop)
    yield Kind("products", lambda folder: write_catalogue(_source(folder), 20), ("source/*.json",), _own_shop)
    yield Kind("generated games", _games, ("alfworld/**/*",), _games)
    yield Kind("given games", _games, ("alfworld/*/train/**/*", "alfworld/manifests/*"), _given_games)
    yield Kind("problems in CSV", _write_csv, ("problems.csv",), _problems(".csv"))
    yield Kind("problems in JSONL", _write_jsonl, ("problems.jsonl",), _problems(".jsonl"))
    yield Kind("problems in JSON", _write_json, ("problems.json",), _problems(".json"))
    yield Kind("problems in Parquet", _write_parquet, ("problems.parquet",), _problems(".parquet"))
    yield Kind(
        "exported episodes",
        lambda folder: write_episodes(folder / "episodes.jsonl", _episodes(), tokens=True),
        ("episodes.jsonl",),
        _export("episodes.jsonl"),
    )
    yield Kind("exported journals", _write_journal, ("m-*.jsonl",), _export("m-*.jsonl"))
    yield Kind("journals to continue", _write_journal, ("m-*.jsonl",), _write_journal)
    yield Kind("journals with valid checksums", _write_journal, ("m-*.jsonl",), _export_checked)


def _source(folder: Path) -> Path:
    (folder / "source").mkdir()
    return folder / "source"


KINDS = tuple(_kinds())
