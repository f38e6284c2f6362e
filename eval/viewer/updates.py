"""Pages that follow runs while they train, from files alone: nothing is served, and the runs do not know of it.

    this process                              the page, every two seconds
    changed files of the runs -> shards
    data/index.js, with a new version         loads data/live.js, a script of 100 bytes
    data/live.js, with that version           another version: loads data/index.js and draws itself again

Pages opened from disk may load scripts, so no server is needed. Every file is replaced whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from gagpo.base import durable
from gagpo.base.errors import GagpoError
from gagpo.eval.episode_files import episode_files
from gagpo.eval.runs import Run
from gagpo.eval.viewer.credit import credit_of_run
from gagpo.eval.viewer.export import (
    DATA,
    INDEX,
    require_replaceable,
    state_of,
    write_file,
    write_pages,
    write_script,
)
from gagpo.eval.viewer.index import EpisodeFile, index, reading_order
from gagpo.eval.viewer.opening import folders_in, home_of, is_begun, open_path
from gagpo.runs.reading import BadResult
from gagpo.runs.run_folder import RunFolder

POLL = 1.0  # seconds between two looks at the files
SHARE = 4  # looks are at least this many times as far apart as one takes, so that training keeps the processor
HEARTBEAT = 5.0  # seconds between two notes that this process still runs
START = 300.0  # seconds to wait for a run that is not on disk yet
SETTLED = 10.0  # seconds without a change after which a finished run is complete
SETTLED_SWEEP = 300.0  # the same for a folder of runs, in which another may begin
IDLE = 3600.0  # seconds without a change after which a run counts as abandoned


class UpdatedPages:
    """Pages of runs that grow.

    A run that is killed and resumed goes on in the same pages: what it repeats replaces what was there. Runs keep their
    numbers, which are in addresses, when others begin.

    paths: run folders, folders of runs, or folders of sweeps.
    output: the folder to write.

    Raises:
        BadResult: ``output`` has other files.
    """

    def __init__(self, paths: Sequence[Path], output: Path):
        require_replaceable(output)
        self.paths = paths
        self.output = output
        self.version = 0
        self.changed = time.time()
        self._runs: list[Path] = []
        self._state: object = None
        self._sources: dict[tuple[int, Path], EpisodeFile] = {}
        self._shards: set[str] = set()  # of the index before this one, which a page may still use
        with durable.replacing_folder(output.resolve(), flushed=False) as target:
            write_pages(target)

    @property
    def page(self) -> Path:
        """The page to open."""
        return self.output / "index.html"

    @property
    def finished(self) -> bool:
        """Whether all runs on disk have all their iterations and evaluations."""
        return bool(self._runs) and all(_is_finished(run) for run in self._runs)

    def update(self) -> bool:
        """Write what has changed since the last call; return whether anything has."""
        state = self._look()
        if state == self._state:
            return False
        self._write(is_live=True)
        # The state from before writing: a file that changed meanwhile is seen by the next call.
        self._state = state
        return True

    def note(self, ended: bool = False) -> None:
        """Tell the page the version of the index, and that this process runs."""
        if ended:
            self._write(is_live=False)
        values = {"version": self.version, "changed": self.changed, "written": time.time(), "ended": ended}
        write_script(self.output / DATA / "live.js", "viewer.live", values)

    def _look(self) -> object:
        """The runs and the states of their files."""
        with suppress(BadResult):  # no run yet
            self._runs += [run for run in folders_in(self.paths, is_begun) if run not in self._runs]
        return [(run, [(path, _state(path)) for path in _files(run)]) for run in self._runs]

    def _write(self, is_live: bool) -> None:
        """Write the shards of changed files, then the index that names them."""
        contents = [_open(path) for path in self._runs]
        problems = [problem for *_, problems_of_run in contents for problem in problems_of_run]
        sources: dict[tuple[int, Path], EpisodeFile] = {}
        for number, (path, (_, files, _)) in enumerate(zip(self._runs, contents, strict=True)):
            for file in files:
                source = self._source(number, path, file, problems)
                if source is not None:
                    sources[number, file] = source
        self._sources = sources
        self.version += 1
        self.changed = time.time()
        record = index([run for run, *_ in contents], sorted(sources.values(), key=reading_order), problems)
        write_script(self.output / INDEX, "viewer.load", record | {"live": is_live, "version": self.version})
        self._remove_old_shards()

    def _source(self, number: int, run: Path, file: Path, problems: list[str]) -> EpisodeFile | None:
        """The entry of a file, whose shards are written if it has changed; None if it cannot be read."""
        earlier = self._sources.get((number, file))
        try:
            if earlier is not None and earlier.state == state_of(file):
                return earlier
            return write_file(self.output, number, file, credit_of_run(home_of(run)))
        except OSError:  # the run has just removed it
            return None
        except BadResult as error:
            problems.append(str(error))
            return None

    def _remove_old_shards(self) -> None:
        shards = {shard for source in self._sources.values() for shard in source.shards}
        for path in (self.output / DATA).glob("*.js"):
            if path.name not in shards | self._shards | {"index.js", "live.js"}:
                path.unlink(missing_ok=True)
        self._shards = shards


def follow(
    paths: Sequence[Path], output: Path, begun: Callable[[Path], None], say: Callable[[str], None], idle: float = IDLE
) -> None:
    """Update the pages until all runs are finished, or nothing has changed for ``idle`` seconds.

    begun: called once with the page to open.
    say: called with a line for the terminal.

    Raises:
        BadResult: no run is on disk after five minutes, or ``output`` has other files.
    """
    _wait_for_run(paths, say)
    pages = UpdatedPages(paths, output)
    settled = SETTLED if all(is_begun(path) for path in paths) else SETTLED_SWEEP
    changed = noted = time.monotonic()
    try:
        pages.update()
        pages.note()
        begun(pages.page)
        while time.monotonic() - changed < idle:
            before = time.monotonic()
            if pages.update():
                changed = before
            if changed == before or before - noted > HEARTBEAT:
                pages.note()
                noted = before
            if before - changed > settled and pages.finished:
                break
            time.sleep(max(POLL, SHARE * (time.monotonic() - before)))
    finally:  # also after Ctrl-C: the page stops asking
        pages.note(ended=True)
    say("finished" if pages.finished else f"nothing has changed for {idle / 60:.0f} minutes")


def _wait_for_run(paths: Sequence[Path], say: Callable[[str], None]) -> None:
    end = time.monotonic() + START
    is_waiting = False
    while True:
        try:
            folders_in(paths, is_begun)
            return
        except BadResult:
            if time.monotonic() > end:
                raise
        if not is_waiting:
            say(f"waiting for {paths[0]}, up to {START / 60:.0f} minutes")
            is_waiting = True
        time.sleep(POLL)


def _files(run: Path) -> list[Path]:
    """The files that the pages show."""
    if run.is_file():
        return [run]
    return [run / "metrics.jsonl", run / "config.yaml", *sorted((run / "evals").glob("*.json")), *episode_files(run)[0]]


def _state(path: Path) -> tuple[int, int] | None:
    try:
        return state_of(path)
    except OSError:
        return None


def _open(path: Path) -> tuple[Run, list[Path], list[str]]:
    """The run as far as it can be read; a run that has just begun has neither metrics nor evaluations."""
    try:
        return open_path(path)
    except BadResult as error:
        files, problems = episode_files(path)
        is_empty = not (path / "metrics.jsonl").exists() and not files
        return Run(path, (), 0, ()), files, problems if is_empty else [*problems, str(error)]


def _is_finished(run: Path) -> bool:
    if run.is_file():
        return True
    with suppress(GagpoError, OSError):  # settings of other versions, or of code that is not here
        return RunFolder.open(run).finished
    return False
