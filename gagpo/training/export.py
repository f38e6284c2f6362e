"""Export of a trained model: a Hugging Face folder with a model card of its results."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import ModelCardData

from gagpo.base import durable
from gagpo.base.tables import Table
from gagpo.eval.runs import Evaluation, Run, load_run
from gagpo.runs.run_folder import AVERAGED, RunFolder, named
from gagpo.settings import RunSettings, SettingsError

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
    settings = RunFolder.open(run).settings
    if out.exists():
        raise SettingsError(f"{out} exists; choose a folder that does not exist")
    from gagpo.agents.engines import adapters  # torch: slow to import
    from gagpo.agents.model import load_model, load_tokenizer, save
    from gagpo.runs import keeping

    saved = keeping.chosen(run, which, settings.training)
    if adapter and not adapters.is_adapter(Path(saved.model)):
        raise SettingsError(f"run {run} trains all weights and has no adapter; export it without --adapter")
    card = model_card(run, saved, adapter)
    with durable.replacing_folder(out) as folder:
        if adapter:
            shutil.copytree(saved.model, folder, dirs_exist_ok=True)
            _name_base_absolutely(folder / adapters.CONFIG)
        else:
            model = load_model(saved.model, trust_remote_code=trust_remote_code)
            save(model, load_tokenizer(saved.model, trust_remote_code=trust_remote_code), folder)
        (folder / CARD).write_text(card, encoding="utf-8")
    return out


def _name_base_absolutely(config: Path) -> None:
    """Let an adapter name its base model's folder so that peft finds it from everywhere; hub names stay."""
    from gagpo.agents.pretrained import folder_of

    record = json.loads(config.read_text(encoding="utf-8"))
    base = Path(folder_of(record["base_model_name_or_path"]))
    if base.is_dir():
        record["base_model_name_or_path"] = str(base.resolve())
        config.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


# Model card -----------------------------------------------------------------------------------------------------------


def model_card(run: Path, saved: Checkpoint, adapter: bool = False) -> str:
    """Markdown with YAML front matter: results before training and of this checkpoint, settings, versions."""
    folder = RunFolder.open(run)
    settings, found = folder.settings, _evaluations(run, saved)
    averaged = ", the average of the weights" if saved.averaged else ""
    name = f"{settings.name}, iteration {saved.iteration}{averaged}"
    front = ModelCardData(
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        tags=["reinforcement-learning", "agent", "gagpo", _algorithm(run)],
        base_model=settings.model if _is_hub_name(settings.model) else None,
    )
    versions = {name: value for name, value in folder.versions().items() if name not in ("machine", "cores")}
    parts = [
        f"---\n{front.to_yaml()}\n---",
        f"# {name}",
        f"Trained from `{settings.model}` on {_envs(settings)} with "
        f"{_algorithm(run)}, {saved.iteration} iterations. "
        + ("An adapter in peft's format." if adapter else "Weights in float32."),
        "## Results\n" + _table(found),
        _conditions(found),
        f"## Settings\n```yaml\n{(run / 'config.yaml').read_text(encoding='utf-8').strip()}\n```",
        "## Versions\n" + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _envs(settings: RunSettings) -> str:
    return ", ".join(f"`{one.environment.id}` (split `{one.environment.split}`)" for one in settings.all_environments)


def _evaluations(run: Path, saved: Checkpoint) -> Sequence[Evaluation]:
    """The evaluations before training and those of the checkpoint's weights."""
    if not (run / "metrics.jsonl").exists() and not any((run / "evals").glob("*.json")):
        return ()
    ended = [one for one in load_run(run).evaluations if one.stage and one.iteration in (0, saved.iteration)]
    return [one for one in ended if one.iteration == 0 or (one.stage == AVERAGED) == saved.averaged]


def _table(found: Sequence[Evaluation]) -> str:
    if not found:
        return "This checkpoint has not been evaluated."
    header = ["when", "environment", "split", "hash", "tasks", "tries", "temperature", "success, 95 % interval"]
    rows = []
    for one in found:
        panel, rate = one.result.panel, one.result.success
        rows.append(
            [
                _when(one),
                *(panel.environment, panel.split, f"`{panel.split_hash}`", str(panel.tasks), str(panel.tries)),
                str(one.result.temperature),
                f"{100 * rate.value:.1f} % [{100 * rate.low:.1f}, {100 * rate.high:.1f}]",
            ]
        )
    return (
        "\n".join(Table(header, rows).markdown())
        + "\n\nEvery task of a panel is played as often as stated. The hash is of its task ids."
    )


def _when(one: Evaluation) -> str:
    if one.iteration == 0:
        return "before training"
    return f"iteration {one.iteration}{', the average of the weights' if one.stage == AVERAGED else ''}"


def _conditions(found: Sequence[Evaluation]) -> str:
    """How the model was prompted, without repetitions."""
    texts = {json.dumps([one.result.panel.kwargs, one.result.panel.conditions], sort_keys=True) for one in found}
    lines = []
    for text in sorted(texts):
        kwargs, conditions = json.loads(text)
        lines.append(f"- environment `{json.dumps(kwargs)}`, prompt `{json.dumps(conditions)}`")
    return "## Conditions\n" + "\n".join(lines) if lines else ""


def _algorithm(run: Path) -> str:
    return Run(run, (), 0, ()).algorithm or "an algorithm of its own"


def _is_hub_name(model: str) -> bool:
    return re.fullmatch(r"[\w.-]+/[\w.-]+", model) is not None and not Path(model).exists()
