"""Export of a trained model: a Hugging Face folder with a model card of its results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from gagpo.base import durable
from gagpo.base.tables import Table
from gagpo.eval.runs import Run, load_run
from gagpo.eval.summary import with_interval
from gagpo.runs.run_folder import AVERAGED, RunFolder, named
from gagpo.settings import SettingsError

if TYPE_CHECKING:
    from gagpo.runs.checkpoint import Checkpoint

CARD = "README.md"


def names_a_run(source: str) -> bool:
    """Whether ``source`` names a run: a folder, or ``runs/X@20``, ``runs/X@best``."""
    return Path(source).is_dir() or named(Path(source))[1] is not None


def export(source: str, out: Path, adapter: bool = False, trust_remote_code: bool = False) -> Path:
    """Write the model of ``RUN``, ``RUN@ITERATION`` or ``RUN@best`` to the folder ``out``, whole or not at all.

    The folder holds float32 weights as safetensors with any adapter merged, config, tokenizer, chat template and a
    model card.

    adapter: write only the adapter instead, in peft's format.
    trust_remote_code: run code that comes with the model. The run's own setting is ignored: the run folder may come
        from somebody else.

    Raises:
        SettingsError: there is no such checkpoint or no adapter, or ``out`` exists.
        CheckpointError: the checkpoint is damaged.
    """
    run, which = named(Path(source))
    settings = RunFolder.open(run).stored_settings()
    if out.exists():
        raise SettingsError(f"{out} exists; choose a folder that does not exist")
    from gagpo.model import adapters  # torch: slow to import
    from gagpo.model.loading import load_model, load_tokenizer, save
    from gagpo.runs import keeping

    checkpoint = keeping.find_checkpoint(run, which, settings.training)
    if adapter and not adapters.is_adapter(Path(checkpoint.model)):
        raise SettingsError(f"run {run} trains all weights and has no adapter; export it without --adapter")
    card = model_card(run, checkpoint, adapter)
    with durable.replacing_folder(out) as folder:
        if adapter:
            shutil.copytree(checkpoint.model, folder, dirs_exist_ok=True)
            _name_base_absolutely(folder / adapters.CONFIG)
        else:
            model = load_model(checkpoint.model, trust_remote_code=trust_remote_code)
            save(model, load_tokenizer(checkpoint.model, trust_remote_code=trust_remote_code), folder)
        (folder / CARD).write_text(card, encoding="utf-8")
    return out


def _name_base_absolutely(config: Path) -> None:
    """Let an adapter name its base model's folder so that peft finds it from everywhere; hub names stay."""
    from gagpo.model.pretrained import folder_of

    record = json.loads(config.read_text(encoding="utf-8"))
    base = Path(folder_of(record["base_model_name_or_path"]))
    if base.is_dir():
        record["base_model_name_or_path"] = str(base.resolve())
        config.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


# Model card -----------------------------------------------------------------------------------------------------------


def model_card(run: Path, checkpoint: Checkpoint, adapter: bool = False) -> str:
    """Markdown: results before training and of this checkpoint, settings, versions."""
    folder = RunFolder.open(run)
    settings = folder.stored_settings()
    envs = ", ".join(f"`{env.environment.id}` (split `{env.environment.split}`)" for env in settings.all_environments)
    algorithm = Run(run, (), 0, ()).algorithm or "an algorithm of its own"
    versions = {name: value for name, value in folder.versions().items() if name not in ("machine", "cores")}
    parts = [
        f"# {settings.name}, {_weights(checkpoint.iteration, checkpoint.averaged)}",
        f"Trained from `{settings.model}` on {envs} with {algorithm}, {checkpoint.iteration} iterations. "
        + ("An adapter in peft's format." if adapter else "Weights in float32."),
        "## Results",
        _results(run, checkpoint),
        f"## Settings\n```yaml\n{(run / 'config.yaml').read_text(encoding='utf-8').strip()}\n```",
        "## Versions\n" + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return "\n\n".join(parts) + "\n"


def _weights(iteration: int, averaged: bool) -> str:
    return f"iteration {iteration}{', the average of the weights' if averaged else ''}"


def _results(run: Path, checkpoint: Checkpoint) -> str:
    """A table of the evaluations before training and of the checkpoint's weights."""
    evaluated = (run / "metrics.jsonl").exists() or any((run / "evals").glob("*.json"))
    header = ["when", "environment", "split", "hash", "tasks", "tries", "temperature", "success %, 95 % interval"]
    rows = []
    for evaluation in load_run(run).evaluations if evaluated else ():
        result = evaluation.result
        task_set = result.task_set
        of_average = evaluation.stage == AVERAGED
        of_checkpoint = evaluation.iteration == checkpoint.iteration and of_average == checkpoint.averaged
        if evaluation.iteration == 0 or (evaluation.stage and of_checkpoint):
            when = _weights(checkpoint.iteration, of_average) if evaluation.iteration else "before training"
            rows.append(
                [
                    when,
                    task_set.environment,
                    task_set.split,
                    f"`{task_set.split_hash}`",
                    str(task_set.tasks),
                    str(task_set.tries),
                    str(result.temperature),
                    with_interval(result.success),
                ]
            )
    return "\n".join(Table(header, rows).markdown()) if rows else "This checkpoint has not been evaluated."
