"""The folder of a run: resolved settings, versions, metrics, evaluations, episodes, checkpoints."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

from filelock import FileLock, Timeout

from gagpo.agents.engines.offers import distributions
from gagpo.base import durable, renamed
from gagpo.base.errors import GagpoError
from gagpo.base.regular_file import read_bytes
from gagpo.data import Decode, Episode, TurnCredit, write_episodes
from gagpo.runs.metrics import Metrics, metric_row, metric_rows, read_metrics
from gagpo.settings import RunSettings, SettingsError, TrainingSettings, dump, formats, load, load_stored, resolve
from gagpo.settings.keys import CHANGEABLE

LOG = logging.getLogger("gagpo")

VERSIONED = (
    "gagpo", "torch", "transformers", "peft", "numpy", "gymnasium", "alfworld", "textworld",
    *distributions(),
)  # fmt: skip

COMMIT = "model_commit"
"""Key in ``versions.json`` of the commit of a hub model."""

PARTS = ("evals", "episodes", "checkpoints")
BEST = "best"
EMA = "ema"
AVERAGED = "average"
AFTER = "after"
_AT = re.compile(r"(?P<run>.+)@(?P<which>\d+|best|ema)")


class RunFolder:
    """The folder of a run, which holds everything to resume or to reproduce it. Only the first rank writes.

    A :meth:`new` one holds its settings in memory until :meth:`write`, so that a failed start leaves no folder.

    is_new: whether it is not on disk yet.
    """

    def __init__(self, path: Path, settings: RunSettings | None = None):
        self.path = path
        self._settings = None if settings is None else resolve(settings)  # None until the file is read
        self.is_new = settings is not None
        self._commit: str | None = None

    @classmethod
    def new(cls, path: Path, settings: RunSettings) -> RunFolder:
        """A new run; SettingsError when ``path`` holds a run or other files."""
        _require_no_run(path)
        if path.is_dir() and not all(_left_by_start(file) for file in path.iterdir()):
            raise SettingsError("is a folder with other files", where=path, advice="choose another name with name=...")
        return cls(path, settings)

    @classmethod
    def create(cls, path: Path, settings: RunSettings) -> RunFolder:
        """A new run, written at once; see :meth:`new`."""
        folder = cls.new(path, settings)
        with folder.locked():
            folder.write()
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """An existing run; SettingsError when ``path`` is not a run."""
        if not (path / "config.yaml").is_file():
            raise SettingsError("is not a run: it has no config.yaml", where=path)
        return cls(path)

    def write(self) -> None:
        """Write a new run, while it is locked; the settings come last, because they make it a run.

        Raises:
            SettingsError: another process has made a run here since :meth:`new`.
        """
        if not self.is_new:
            return
        _require_no_run(self.path)
        for folder in PARTS:
            (self.path / folder).mkdir(parents=True, exist_ok=True)
        pinned = {COMMIT: self._commit} if self._commit else {}
        durable.write_text(self.path / "versions.json", json.dumps({**versions(), **pinned}, indent=1) + "\n")
        durable.write_text(self.path / "config.yaml", dump(self.settings))
        self.is_new = False

    @property
    def settings(self) -> RunSettings:
        """The resolved settings."""
        if self._settings is None:
            # Runs of older versions may leave open what is resolved now.
            self._settings = resolve(load(self.path / "config.yaml", earlier=True))
        return self._settings

    def stored_settings(self, overrides: Sequence[str] = ()) -> RunSettings:
        """The settings to evaluate or export the run with, which import no credit of other code.

        overrides: ``section.key=value``, for this process only.
        """
        return load_stored(self.path / "config.yaml", overrides, earlier=True)

    def choose_formats(self, training: str, sampling: str) -> None:
        """Set every number format that the settings leave to the machine, on disk too if the run is there.

        Called once, when the run begins. From then on its formats are stored: another machine resumes it with the same.

        training, sampling: ``float32`` or ``bfloat16``.
        """
        if not formats.is_open(self.settings):
            return
        self._settings = resolve(formats.with_formats(self.settings, training, sampling))
        if not self.is_new:
            durable.write_text(self.path / "config.yaml", dump(self._settings))

    def choose_unsharded(self, unsharded: str) -> None:
        """Set ``training.unsharded`` if the settings leave it open, on disk too if the run is there."""
        if self.settings.training.unsharded != "auto":
            return
        self._settings = formats.with_unsharded(self.settings, unsharded)
        if not self.is_new:
            durable.write_text(self.path / "config.yaml", dump(self._settings))

    @property
    def commit(self) -> str | None:
        """The commit of the hub model that the run began with; None for other models."""
        if self._commit is None and not self.is_new:
            commit = self.versions().get(COMMIT)
            self._commit = commit if isinstance(commit, str) else None
        return self._commit

    def pin(self, commit: str | None) -> None:
        """Record the commit of the hub model."""
        if commit is None or commit == self.commit:
            return
        self._commit = commit
        if not self.is_new:
            text = json.dumps({**self.versions(), COMMIT: commit}, indent=1) + "\n"
            durable.write_text(self.path / "versions.json", text)

    def versions(self) -> dict[str, object]:
        """The content of ``versions.json``, empty where it cannot be read."""
        try:
            return dict(json.loads(read_bytes(self.path / "versions.json")))
        except (OSError, ValueError, TypeError, RecursionError):
            return {}

    def change(self, overrides: Sequence[str]) -> None:
        """Change settings of :data:`CHANGEABLE` when the run is resumed.

        When a run is extended, its final evaluations become those of their iteration.
        """
        for key in (override.partition("=")[0] for override in overrides):
            if reason := renamed.replacement(renamed.KEYS, key, "key"):
                raise SettingsError(reason, key=key)
            if key not in CHANGEABLE:
                raise SettingsError(
                    f"{key!r} cannot change when a run is resumed",
                    key=key,
                    advice=f"only these can: {', '.join(CHANGEABLE)}",
                )
        settings = resolve(load(self.path / "config.yaml", overrides, earlier=True))
        rows = self.metrics()
        done = int(rows[-1]["iteration"]) if rows else 0
        if settings.training.iterations < done:
            raise SettingsError(
                f"training.iterations must be at least {done}, the iterations that {self.path} has done "
                f"(got {settings.training.iterations})",
                key="training.iterations",
            )
        if settings.training.iterations > done:
            for stage, name in ((AFTER, f"iteration-{done:04d}-"), (AVERAGED, f"earlier-{AVERAGED}-{done:04d}-")):
                old = [*self.path.glob(f"evals/{stage}-*.json"), *self.path.glob(f"episodes/{stage}-*.jsonl")]
                for path in old:
                    path.rename(path.with_name(path.name.replace(f"{stage}-", name, 1)))
        durable.write_text(self.path / "config.yaml", dump(settings))
        self._settings = settings

    @property
    def finished(self) -> bool:
        """Whether the final evaluations exist or, in a run without any, the last iteration and its checkpoint."""
        if panels := self.settings.panels:
            stages = (AFTER, AVERAGED) if self.settings.training.measures_average else (AFTER,)
            evals = self.path / "evals"
            return all((evals / f"{stage}-{panel}.json").exists() for stage in stages for panel in panels)
        from gagpo.runs import checkpoint as checkpoints

        rows = {int(row["iteration"]): row for row in read_metrics(self.path / "metrics.jsonl")[0]}
        saved = checkpoints.latest(self.path / "checkpoints")
        row = rows.get(saved.iteration, {}) if saved else {}
        return bool(row) and enough(self.settings.training, int(row["iteration"]), row.get("turns_total", 0.0))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing this run, until the block or this process ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise SettingsError(f"another process is writing {self.path}", advice="wait for it, or stop it") from None
        try:
            yield
        finally:
            lock.release()

    def remove_leftovers(self) -> None:
        """Remove what a killed process has left half written, while the run is locked."""
        durable.remove_leftovers(self.path)  # another process may write a report or pages
        for folder in PARTS:
            durable.remove_leftovers(self.path / folder, alone=True)

    # Metrics ----------------------------------------------------------------------------------------------------------

    def log(self, row: Metrics) -> None:
        """Append one line to metrics.jsonl."""
        durable.append_line(self.path / "metrics.jsonl", json.dumps(row))

    def metrics(self) -> list[Metrics]:
        """The rows logged so far, without damaged lines."""
        return metric_rows(self.path / "metrics.jsonl")[0]

    def rewind(self, iteration: int) -> list[Metrics]:
        """Remove what was logged after ``iteration``; returns the rows that stay.

        Damaged lines move to ``metrics.damaged.jsonl``, with a warning.
        """
        self._set_damaged_aside()
        rows = [row for row in self.metrics() if row["iteration"] <= iteration]
        durable.write_text(self.path / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        for path in [*self.path.glob("evals/iteration-*.json"), *self.path.glob("episodes/train-*.jsonl")]:
            number = path.stem.split("-")[1]
            if number.isdecimal() and int(number) > iteration:
                path.unlink()
        return rows

    def _set_damaged_aside(self) -> None:
        path = self.path / "metrics.jsonl"
        aside = self.path / "metrics.damaged.jsonl"
        lines = read_bytes(path).decode("utf-8", errors="replace").split("\n") if path.exists() else []
        damaged = [line for line in lines if line.strip() and metric_row(line) is None]
        for line in damaged:
            durable.append_line(aside, line)
        if damaged:
            LOG.warning("%s had damaged lines (%d), kept in %s", path, len(damaged), aside.name)

    # Results ----------------------------------------------------------------------------------------------------------

    def evaluation(self, label: str) -> Path:
        """The file of an evaluation's result."""
        return self.path / "evals" / f"{label}.json"

    def episodes(self, label: str) -> Path:
        return self.path / "episodes" / f"{label}.jsonl"

    def save_episodes(
        self,
        label: str,
        episodes: Sequence[Episode],
        tokens: bool = False,
        decode: Decode | None = None,
        credits: Sequence[Sequence[TurnCredit]] | None = None,
    ) -> Path:
        """Write ``episodes/<label>.jsonl``; see :func:`gagpo.data.write_episodes`."""
        path = self.episodes(label)
        with durable.replacing(path) as temporary:
            write_episodes(temporary, episodes, tokens, decode, credits)
        return path


def _left_by_start(path: Path) -> bool:
    """Whether a start that was killed before it wrote the settings may have left ``path``."""
    if path.name in PARTS:
        return path.is_dir() and not any(path.iterdir())
    return path.name in (".lock", "versions.json") or path.name.endswith(".part")


def _require_no_run(path: Path) -> None:
    """Raise SettingsError if ``path`` is a run, with what to type to continue it or to start another."""
    if not (path / "config.yaml").exists():
        return
    quoted = shlex.quote(str(path))
    state, remedy = "", f"resume it with `gagpo train --resume {quoted}`"
    with suppress(GagpoError, OSError):  # settings of other versions, or of code that is not here
        folder = RunFolder.open(path)
        last = folder.settings.training.iterations
        if folder.finished:
            state = f", which is finished ({last} iterations)"
            remedy = f"extend it with `gagpo train --resume {quoted} training.iterations={2 * max(last, 1)}`"
    numbers = (number for number in range(2, 1000) if not path.with_name(f"{path.name}-{number}").exists())
    another = f"name={shlex.quote(f'{path.name}-{next(numbers, 1000)}')}"
    raise SettingsError(
        f"holds a run already{state}", where=path, advice=f"{remedy}, or start another with {another}, or delete it"
    )


def enough(training: TrainingSettings, iterations: int, turns: float) -> bool:
    """Whether a run is complete after so many iterations and environment turns."""
    return iterations >= training.iterations or (training.max_turns is not None and turns >= training.max_turns)


def named(run: Path) -> tuple[Path, str | None]:
    """The run folder and the checkpoint of ``runs/X``, ``runs/X@20``, ``@best`` or ``@ema``."""
    name, _, which = str(run).rpartition("@")
    if not (run / "config.yaml").is_file():
        if reason := renamed.replacement(renamed.CHECKPOINTS, which, "checkpoint") if name else "":
            raise SettingsError(reason, where=run)
        if match := _AT.fullmatch(str(run)):
            return Path(match["run"]), match["which"]
    return run, None


def versions() -> dict[str, str]:
    """Versions of everything that may affect results."""
    by_name = {"python": platform.python_version(), "machine": platform.machine(), "cores": str(os.cpu_count())}
    for name in VERSIONED:
        try:
            by_name[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {**by_name, **_commit()}


def _commit() -> dict[str, str]:
    """The commit of the sources, if they are a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": done.stdout.strip()}
