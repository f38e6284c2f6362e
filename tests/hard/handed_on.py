"""Mutated files of what is handed on: episodes and journals that are exported, and runs that are viewed."""

from __future__ import annotations

import shutil
import tempfile
import zlib
from functools import partial
from pathlib import Path

from gagpo.agents.episodes import Episode, Turn, write_episodes
from gagpo.base.errors import GagpoError
from gagpo.eval.journal import Journal
from gagpo.interop.export import export
from tests.hard.mutations import Kind, mutations
from tests.hard.outcome import Tally, command
from tests.hard.worlds import make_run

KEY = {"model": "openai:m", "environment": "gagpo/Math-v0", "split": "test", "panel": "abc", "kwargs": {"level": 3}}


def _episodes() -> list[Episode]:
    played = []
    for sample in range(3):  # with and without what only some episodes have
        turns = [Turn("see", "<think>hm</think>go", "go", 0.0), Turn("seen", "y\ud800", "y", 1.0, state="s")]
        info = {"prompt_tokens": 9, "completion_tokens": 3, "cost": 0.5, "verdict": "right"}
        one = Episode(f"task/{sample % 2}", "kind", "test", 0, sample, 1, 0.4, turns, True, "terminated", 0, info=info)
        one.end_observation = "done" if sample else None
        played.append(one)
    return played


def _write(folder: Path) -> None:
    write_episodes(folder / "episodes.jsonl", _episodes(), tokens=True)


def _journal(folder: Path) -> None:
    with Journal(folder, KEY) as journal:
        for episode in _episodes():
            journal.append(episode)
        journal.note_spent({"cost": 0.5})


def _exported(pattern: str, folder: Path) -> None:
    """To both forms that need no other package; the second is tried although the first was refused."""
    (source,) = folder.glob(pattern)
    refused: GagpoError | None = None
    with tempfile.TemporaryDirectory() as place:
        for form in ("jsonl", "atif"):
            try:
                export(source, form, Path(place) / form)
            except GagpoError as error:
                refused = error
    if refused is not None:
        raise refused


def _gone_on_with(folder: Path) -> None:
    """As an evaluation that was interrupted."""
    with Journal(folder, KEY) as journal:
        journal.spent("cost")
        for episode in _episodes():
            journal.append(episode)


def _checksums_made_to_agree(folder: Path) -> None:
    """As after an edit by hand with care: the reader itself is on its own."""
    for path in folder.glob("openai-m-*.jsonl"):
        texts = [line.rpartition(b" ")[0] for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(b"%s %08x\n" % (text, zlib.crc32(text)) for text in texts))
    _exported("openai-m-*.jsonl", folder)


def _viewed(folder: Path) -> None:
    shutil.rmtree(folder / "run" / "view", ignore_errors=True)
    command("view", str(folder / "run"))


EXPORTED = (
    Kind("exported episodes", _write, ("episodes.jsonl",), partial(_exported, "episodes.jsonl")),
    Kind("exported journals", _journal, ("*.jsonl",), partial(_exported, "openai-m-*.jsonl")),
)
JOURNALS = (
    Kind("journals that go on", _journal, ("*.jsonl",), _gone_on_with),
    Kind("journals with checksums", _journal, ("*.jsonl",), _checksums_made_to_agree),
)
VIEWED = (
    Kind("viewed episodes", make_run, ("run/episodes/*",), _viewed),
    Kind("viewed runs", make_run, ("run/metrics.jsonl", "run/config.yaml", "run/evals/*.json"), _viewed),
)


def exports(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Export ``count`` mutated files of episodes and journals."""
    return mutations(folder, count, seed, only, EXPORTED, "exports")


def journals(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """Go on with ``count`` mutated journals."""
    return mutations(folder, count, seed, only, JOURNALS, "journals")


def views(folder: Path, count: int, seed: int, only: int | None = None) -> list[Tally]:
    """View ``count`` runs of which a file was mutated."""
    return mutations(folder, count, seed, only, VIEWED, "views")
