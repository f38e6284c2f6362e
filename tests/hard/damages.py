"""Randomly damaged checkpoints: each is refused with the file's name, or loads unchanged."""

from __future__ import annotations

import hashlib
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import torch

from gagpo.runs.run_folder import RunFolder
from gagpo.training.trainer import Trainer
from tests.hard.outcome import FAULT, FINE, REFUSED, Outcome, Tally, attempt
from tests.hard.small_run import make_run


def damages(folder: Path, count: int, seed: int, only: int | None = None) -> Tally:
    """Damage the last checkpoint of a run ``count`` times, one file each, and load it."""
    begin = time.monotonic()
    run = make_run(folder)
    (*_, checkpoint) = sorted((run / "checkpoints").iterdir())
    retained = folder / "whole"
    shutil.rmtree(retained, ignore_errors=True)
    shutil.copytree(checkpoint, retained)
    undamaged = attempt(lambda: loaded(run))
    if undamaged.verdict != FINE:
        raise RuntimeError(f"the undamaged run does not load: {undamaged.words}")
    tally = Tally("damaged checkpoints")
    files = sorted(path.relative_to(retained) for path in retained.rglob("*") if path.is_file())
    for case in range(count) if only is None else [only]:
        rng = random.Random(f"{seed}/{case}")
        file, damage = rng.choice(files), rng.choice(list(DAMAGES))
        shutil.rmtree(checkpoint)
        shutil.copytree(retained, checkpoint)
        DAMAGES[damage](checkpoint / file, rng)
        outcome = _judged(attempt(lambda: loaded(run)), undamaged, file)
        tally.add(f"damages --only {case} ({damage} in {file})", outcome)
    shutil.rmtree(checkpoint)
    shutil.copytree(retained, checkpoint)
    tally.seconds = time.monotonic() - begin
    return tally


def _judged(outcome: Outcome, undamaged: Outcome, file: Path) -> Outcome:
    if outcome.verdict == FINE and outcome.words != undamaged.words:
        return Outcome(FAULT, "loads in silence, and what it loads is something else")
    if outcome.verdict == REFUSED and file.name not in outcome.words:
        return Outcome(FAULT, f"the message does not name {file.name}: {outcome.words}")
    return outcome


def loaded(run: Path) -> str:
    """A digest of all that a resumed run takes from its last checkpoint."""
    trainer = Trainer(RunFolder.open(run), quiet=True)
    sha256 = hashlib.sha256()

    def look(value: object) -> None:
        if isinstance(value, torch.Tensor):
            sha256.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key in sorted(value, key=str):
                sha256.update(str(key).encode())
                look(value[key])
        elif isinstance(value, list | tuple):
            for item in value:
                look(item)
        else:
            sha256.update(repr(value).encode())

    look(trainer.learner.model.state_dict())
    look(trainer.learner.optimizer.state_dict())
    look(trainer._state())
    look(trainer.learner.model.config.to_dict())
    look(trainer.learner.policy.tokenizer.get_vocab())
    return sha256.hexdigest()


# Damages --------------------------------------------------------------------------------------------------------------


def flip_bits(path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def zero_a_block(path: Path, rng: random.Random) -> None:
    """As a disk leaves it when the power fails."""
    data = bytearray(path.read_bytes())
    start = rng.randrange(len(data))
    end = min(len(data), start + rng.choice([1, 16, 512, 4096]))
    data[start:end] = bytes(end - start)
    path.write_bytes(data)


def truncate(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data))])


def append(path: Path, rng: random.Random) -> None:
    path.write_bytes(path.read_bytes() + rng.randbytes(rng.randint(1, 100)))


def delete(path: Path, rng: random.Random) -> None:
    path.unlink()


def exchange(path: Path, rng: random.Random) -> None:
    """Put another file of the checkpoint in its place."""
    remaining = [other for other in path.parent.iterdir() if other.is_file() and other != path]
    shutil.copy(rng.choice(remaining), path) if remaining else truncate(path, rng)


DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "flipped bits": flip_bits,
    "a block of zeros": zero_a_block,
    "a lost end": truncate,
    "a longer end": append,
    "a lost file": delete,
    "another file": exchange,
}
