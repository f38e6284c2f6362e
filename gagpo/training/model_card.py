"""The model card of an exported run: a header for the Hugging Face hub, results, settings and versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gagpo.base import hub
from gagpo.base.core_schema import parse_yaml, write_yaml
from gagpo.base.tables import Table
from gagpo.eval.runs import Evaluation, Run, load_run, shown_settings
from gagpo.eval.units import PERCENT
from gagpo.runs.run_folder import AVERAGED, RunFolder
from gagpo.settings import RunSettings
from gagpo.settings.derived import RECIPE

if TYPE_CHECKING:
    from gagpo.runs.checkpoint import Checkpoint

CARD = "README.md"
UNKNOWN = "unknown"
"""The hub's identifier of a licence that nobody named."""
OUR_LICENCE = "mit"  # of the package, and so of the models that ship with it


class Origin(NamedTuple):
    """Where the weights come from.

    name: on the hub; '' for a model that is not there.
    licence: identifier of the hub, such as ``apache-2.0``.
    """

    name: str
    licence: str


def model_card(
    run: Path, checkpoint: Checkpoint, adapter: bool = False, licence: str | None = None, missing: str = ""
) -> str:
    """Markdown: the hub's header, results before training and of this checkpoint, use elsewhere, settings, versions.

    licence: identifier of the hub; by default that of the base model.
    missing: why the chat template does not show the prompt of training; '' if it does.
    """
    folder = RunFolder.open(run)
    settings = folder.stored_settings()
    envs = ", ".join(f"`{env.environment.id}` (split `{env.environment.split}`)" for env in settings.all_environments)
    algorithm = Run(run, (), 0, ()).algorithm or "a custom algorithm"
    versions = {name: value for name, value in folder.versions().items() if name not in ("machine", "cores")}
    evaluations = _evaluations(run, checkpoint)
    sections = [
        _header(settings, _final(evaluations), adapter, licence),
        f"# {settings.name}, {_weights(checkpoint.iteration, checkpoint.averaged)}",
        f"Trained from `{settings.model}` on {envs} with {algorithm}, {checkpoint.iteration} iterations. "
        + ("An adapter in peft's format." if adapter else "Weights in float32."),
        "## Results",
        _results(evaluations, checkpoint),
        _use_elsewhere(settings, adapter, missing),
        f"## Settings\n```yaml\n{_settings_text(run / 'config.yaml')}\n```",
        "## Versions\n" + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    return "\n\n".join(sections) + "\n"


# Header ---------------------------------------------------------------------------------------------------------------


def _header(settings: RunSettings, evaluations: list[Evaluation], adapter: bool, licence: str | None) -> str:
    """The YAML between ``---`` that the hub reads: licence, base model, tags, data, metrics and a model index."""
    from huggingface_hub import ModelCardData  # slow to import

    base = base_of(settings)
    data = ModelCardData(
        license=licence or base.licence,
        library_name="peft" if adapter else "transformers",
        pipeline_tag="text-generation",
        base_model=base.name or None,
        tags=_tags(settings),
        datasets=data_sets_of(settings) or None,
        metrics=["success_rate", "mean_reward"] if evaluations else None,
        model_name=settings.name if evaluations else None,
        eval_results=[result for item in evaluations for result in _hub_results(item)] or None,
    )
    return f"---\n{data.to_yaml().strip()}\n---"


def _tags(settings: RunSettings) -> list[str]:
    environments = [env.environment.id.rpartition("/")[2].rpartition("-v")[0] for env in settings.all_environments]
    tags = [
        "gagpo",
        "reinforcement-learning",
        "agent",
        settings.algorithm.preset,
        *(name.lower() for name in environments),
    ]
    return [tag for tag in dict.fromkeys(tags) if tag]


def _hub_results(evaluation: Evaluation) -> list[Any]:
    """The success rate (per cent) and the mean reward of an evaluation, with their 95 % intervals."""
    from huggingface_hub import EvalResult

    result = evaluation.result
    task_set = result.task_set
    values = {"success_rate": (result.success, 100.0), "mean_reward": (result.mean_reward, 1.0)}
    return [
        EvalResult(
            task_type="reinforcement-learning",
            task_name="Multi-turn tasks",
            dataset_type=task_set.environment,
            dataset_name=f"{task_set.environment} ({task_set.split})",
            dataset_split=task_set.split,
            dataset_revision=task_set.split_hash,
            metric_type=name,
            metric_name=name.replace("_", " ") + (", %" if scale != 1 else ""),
            metric_value=round(interval.value * scale, 4),
            metric_args={
                "low": round(interval.low * scale, 4),
                "high": round(interval.high * scale, 4),
                "confidence": 0.95,
                "tasks": task_set.tasks,
                "episodes_per_task": task_set.tries,
                "temperature": result.temperature,
            },
        )
        for name, (interval, scale) in values.items()
    ]


def base_of(settings: RunSettings) -> Origin:
    """The base model of a run. SFT records its own in the folder that the run starts from."""
    from gagpo.model import adapters, pretrained, starters

    model = settings.model
    if not starters.is_starter(model) and model not in pretrained.MODELS and Path(model).is_dir():
        base_model = _base_of_sft(Path(model))
        if base_model is None:
            return Origin("", UNKNOWN)
        model = base_model
        if adapters.is_adapter(Path(model)):  # SFT continued it
            model, _ = adapters.base_of(Path(model))
    model = pretrained.base_of(model)
    if starters.is_starter(model):
        return Origin("", OUR_LICENCE)
    if model in pretrained.MODELS:
        return Origin(pretrained.MODELS[model].hub, pretrained.MODELS[model].licence.lower())
    if hub.NAME.fullmatch(model) and "/" in model and not Path(model).is_dir():
        return Origin(model, _cached_licence(model))
    return Origin("", UNKNOWN)


def _base_of_sft(folder: Path) -> str | None:
    """The model that SFT started from; None for a new model, or a folder that SFT did not make."""
    try:
        base_model = json.loads((folder / RECIPE).read_text(encoding="utf-8"))["sft"]["base_model"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return base_model if isinstance(base_model, str) else None


def _cached_licence(model: str) -> str:
    """The licence in the model card of a hub model, if that is in the cache: an export needs no network."""
    from huggingface_hub import ModelCard, try_to_load_from_cache

    path = try_to_load_from_cache(model, CARD)
    if not isinstance(path, str):
        return UNKNOWN
    try:
        return str(ModelCard.load(path).data.license or UNKNOWN)
    except (OSError, ValueError):  # a card of somebody else may hold anything
        return UNKNOWN


def data_sets_of(settings: RunSettings) -> list[str]:
    """The Hugging Face data sets that the run's environments read."""
    from gagpo.envs.math.sources import PRESETS

    names = []
    for env in settings.all_environments:
        data = env.environment.kwargs.get("data")
        sources = list(data.values()) if isinstance(data, dict) and "path" not in data else [data]
        for source in sources:
            name = source.get("path") if isinstance(source, dict) else source
            name = PRESETS[name].path if name in PRESETS else name
            if isinstance(name, str) and name.count("/") == 1 and hub.NAME.fullmatch(name) and not Path(name).exists():
                names.append(name)
    return list(dict.fromkeys(names))


# Body -----------------------------------------------------------------------------------------------------------------


def _settings_text(path: Path) -> str:
    """The settings as they stand, unless they hold a secret, which is then replaced."""
    text = path.read_text(encoding="utf-8").strip()
    without_secrets = shown_settings(path)
    return text if without_secrets == parse_yaml(text) else write_yaml(without_secrets).strip()


def _use_elsewhere(settings: RunSettings, adapter: bool, missing: str) -> str:
    """How other programs run the model. MODEL stands for this folder or its name on the hub."""
    prompt = "The chat template contains the prompt of training, except in conversations with a system message."
    if missing:
        prompt = f"The chat template does not contain the prompt of training: {missing}."
    if adapter:
        commands = [
            f"vllm serve {settings.model} --enable-lora --lora-modules agent=MODEL",
            "gagpo export RUN FOLDER  # without --adapter: a merged model for llama.cpp and Ollama",
        ]
    else:
        commands = [
            "vllm serve MODEL",
            "python llama.cpp/convert_hf_to_gguf.py MODEL --outfile model.gguf",
            "llama-server -m model.gguf --jinja",
            "ollama create agent -f Modelfile  # the Modelfile: FROM ./model.gguf",
        ]
    python = "python -c \"from transformers import pipeline; print(pipeline('text-generation', 'MODEL')([{'role': "
    python += "'user', 'content': 'Hello'}]))\""
    lines = "\n".join([python, *commands, "gagpo chat MODEL"])
    tokens = f"Sample at most {settings.rollout.max_tokens} tokens, as in training."
    return f"## Use it elsewhere\n{prompt} {tokens}\n```sh\n{lines}\n```"


def _weights(iteration: int, averaged: bool) -> str:
    return f"iteration {iteration}{', the average of the weights' if averaged else ''}"


def _evaluations(run: Path, checkpoint: Checkpoint) -> list[Evaluation]:
    """The evaluations before training (without a stage) and of the checkpoint's weights."""
    if not ((run / "metrics.jsonl").exists() or any((run / "evals").glob("*.json"))):
        return []
    evaluations = []
    for evaluation in load_run(run).evaluations:
        of_average = evaluation.stage == AVERAGED
        of_checkpoint = evaluation.iteration == checkpoint.iteration and of_average == checkpoint.averaged
        if evaluation.iteration == 0 or (evaluation.stage and of_checkpoint):
            evaluations.append(evaluation)
    return evaluations


def _final(evaluations: list[Evaluation]) -> list[Evaluation]:
    """The last evaluation of the checkpoint's weights on each task set."""
    last = {(item.result.task_set.environment, item.split): item for item in evaluations if item.iteration}
    return list(last.values())


def _results(evaluations: list[Evaluation], checkpoint: Checkpoint) -> str:
    """A table of the evaluations."""
    header = ["when", "environment", "split", "hash", "tasks", "tries", "temperature", "success %, 95 % interval"]
    rows = []
    for evaluation in evaluations:
        task_set = evaluation.result.task_set
        when = "before training"
        if evaluation.iteration:
            when = _weights(checkpoint.iteration, evaluation.stage == AVERAGED)
        rows.append(
            [
                when,
                task_set.environment,
                task_set.split,
                f"`{task_set.split_hash}`",
                str(task_set.tasks),
                str(task_set.tries),
                str(evaluation.result.temperature),
                PERCENT.interval(evaluation.result.success),
            ]
        )
    return "\n".join(Table(header, rows).markdown()) if rows else "This checkpoint has not been evaluated."
