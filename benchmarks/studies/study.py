"""A study of whole runs: its command line, its rows or its table, and runs that are begun, continued or only read."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.studies.rows import FOLDER
from gagpo.base.core_schema import write_yaml
from gagpo.eval.runs import Run
from gagpo.settings import RunSettings
from gagpo.sft.run import sft
from gagpo.training.launch import train


class Study:
    """A study whose rows go to ``lab/studies/NAME.jsonl``, and whose runs to ``runs/NAME``.

    description: of its command line. run: does what ``run`` asks for; it is given the options and the file of rows.
    table: the lines that ``table`` prints of that file.
    """

    def __init__(
        self,
        name: str,
        description: str | None,
        run: Callable[[argparse.Namespace, Path], None],
        table: Callable[[Path], list[str]],
    ):
        self.name, self.run, self.table = name, run, table
        form = argparse.RawDescriptionHelpFormatter
        self.options = argparse.ArgumentParser(description=description, formatter_class=form)
        self.options.add_argument("command", choices=["run", "table"])
        self.options.add_argument("overrides", nargs="*", help="section.key=value of every run")
        self.options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
        self.options.add_argument("--runs", type=Path, default=Path("runs") / name)
        self.options.add_argument("--rows", type=Path, default=FOLDER)

    def main(self, arguments: Sequence[str] | None = None) -> int:
        options = self.options.parse_intermixed_args(arguments)
        rows = options.rows / f"{self.name}.jsonl"
        if options.command == "table":
            print("\n".join(self.table(rows)))
        else:
            self.run(options, rows)
        return 0


def made_by_sft(settings: RunSettings) -> str:
    """The folder of the model that a run of ``settings`` starts from; made by the config's own SFT if it is missing."""
    if settings.sft is not None and not settings.model.startswith("starter:") and not Path(settings.model).exists():
        sft(settings)
    return settings.model


def finished(settings: RunSettings, runs: Path) -> Run:
    """The run of ``settings``, started, resumed or only read. Keys that they leave open are derived as in any run."""
    made_by_sft(settings)
    folder = runs / settings.name
    if (folder / "config.yaml").exists():
        return train(folder, resume=True, quiet=True)
    runs.mkdir(parents=True, exist_ok=True)
    config = runs / f"{settings.name}.yaml"
    config.write_text(write_yaml(settings.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    return train(config, runs=runs, quiet=True)
