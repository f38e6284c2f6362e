"""Supervised fine-tuning (SFT): from demonstrations to the model folder that RL starts from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from gagpo.agents.context import Context
from gagpo.agents.setup import make_context
from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.data import Episode
from gagpo.model.chosen_format import ChosenFormats, formats_for
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.shape import config_of
from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.derived import RECIPE, Derived, recipe, require_same_recipe
from gagpo.settings.formats import is_open, with_formats
from gagpo.settings.resolve import take_derived_values
from gagpo.sft.adapter import keep_base, stored, with_adapter
from gagpo.sft.conversation_files import holds_conversations
from gagpo.sft.demonstrations import Demonstrations, action_format_of, demonstrations, environment_of, of_file, sft_of
from gagpo.sft.derived import POSITIONS, TokenLengths, derived_shape, rate_of, resolved, vocabulary_of, words
from gagpo.sft.evaluator import Report, SftEvaluator, SuccessTarget, success_target
from gagpo.sft.fit import FitCallbacks, fit
from gagpo.sft.messages import read_messages
from gagpo.sft.rows import PROMPT, SKIPPED, LabelledRow, store_rows, stored_rows, tokenized_rows
from gagpo.sft.small_model import create, save_folder, train_tokenizer

TOKENIZER_EPISODES = 2000  # episodes that a tokenizer is trained on; more change nothing
_PROGRESS = "found.json"  # in the folder of unfinished work: what was derived, and what a model is compared with


def sft(settings: RunSettings, quiet: bool = False, say: Report = lambda _: None) -> Path:
    """Make the folder that ``settings.model`` names: demonstrations, tokenizer, model, training.

    Unfinished work is kept in a folder next to it; the same call resumes it.

    say: called with what was derived and measured, and what that means for RL.

    Returns: the model's folder.
    """
    if settings.sft is None:
        raise SettingsError(f"run {settings.name!r} has no section 'sft'", key="sft")
    if settings.environments and settings.sft.steps is None:
        raise SettingsError("SFT in several environments needs sft.steps", key="sft.steps")
    if settings.environments and settings.sft.data is not None:
        raise SettingsError(
            "sft.data is for a run of one environment", key="sft.data", advice="remove it, or name one environment"
        )
    if any(env.context.admissible for env in settings.all_environments):
        # episodes do not store the admissible actions, so prompts would differ from those of RL
        raise SettingsError(
            "SFT cannot show admissible actions", key="context.admissible", advice="set context.admissible=false"
        )
    folder = Path(settings.model)
    recipe_values = recipe(settings)
    work = folder.with_name(f"{folder.name}.under-way")
    require_same_recipe(work, settings)
    model, tokenizer, rows = prepare(settings, work, {RECIPE: _text(recipe_values)}, quiet)
    progress = json.loads((work / _PROGRESS).read_text(encoding="utf-8"))
    say(words(progress["derived"]))
    settings = with_stored_formats(settings, progress, say)
    settings = resolved(take_derived_values(settings, progress["derived"]), parameters_of(model))
    trained = with_adapter(model, sft_of(settings), work, settings.device)
    evaluator = None
    if progress["expected"]:
        evaluator = SftEvaluator(settings, tokenizer, SuccessTarget.stored(progress["expected"]), say)

    def texts() -> dict[str, str]:
        measured = evaluator.state() if evaluator else []
        return {RECIPE: _text({**recipe_values, "derived": progress["derived"], "measured": measured})}

    def save(place: Path, _: torch.nn.Module) -> None:
        trained.save(tokenizer, place, texts())

    keeps_best = sft_of(settings).every is not None
    callbacks = FitCallbacks(on_save=partial(save, work / "latest"))
    if keeps_best:
        callbacks = FitCallbacks(callbacks.on_save, on_best=partial(save, work / "best"))
    fit(trained.model, rows, settings, quiet, work, evaluator, callbacks=callbacks)
    if keeps_best and evaluator is not None:
        best = evaluator.best
        if best is not None and best is not evaluator.measures[-1]:
            say(f"the model of step {best.step} is kept")
            trained = stored(work / "best", settings.device)
    trained.save(tokenizer, folder, texts())
    shutil.rmtree(work)
    if evaluator is not None:
        say(evaluator.verdict())
    return folder


def with_stored_formats(settings: RunSettings, progress: Mapping[str, Any], say: Report) -> RunSettings:
    """The settings with the formats that the machine chose when SFT began, so that another one resumes with the same.

    Work that was begun by a version that chose none goes on in float32, which was the default then.
    """
    if not is_open(settings):
        return settings
    formats = ChosenFormats(
        **progress.get("formats", {"training": "float32", "sampling": "float32", "reason": "stored"})
    )
    say(f"number format: {formats}")
    return with_formats(settings, formats.training, formats.sampling)


def prepare(
    settings: RunSettings, work: Path, files: Mapping[str, str], quiet: bool
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase, list[LabelledRow]]:
    """The model before training, its tokenizer and its rows, from ``work`` or made there.

    files: texts of further files in the model's folder, by file name.
    """
    if not (work / "rows.npz").exists():
        _make(settings, work, files, quiet)
    start = str(work / "start")
    return load_model(start, device=settings.device), load_tokenizer(start), stored_rows(work / "rows.npz")


def _make(settings: RunSettings, work: Path, files: Mapping[str, str], quiet: bool) -> None:
    """Run demonstrations, train the tokenizer and create the model; writes all of them to ``work``."""
    sft_settings = sft_of(settings)
    base = load_model(sft_settings.base_model) if sft_settings.base_model is not None else None
    tokenizer = load_tokenizer(sft_settings.base_model) if sft_settings.base_model is not None else None
    demonstrations_of = [
        (env_settings, demonstrations_in(env_settings, tokenizer, quiet))
        for env_settings in settings_per_environment(settings)
    ]
    target: SuccessTarget | None = None
    if len(demonstrations_of) == 1:
        env_settings, demos = demonstrations_of[0]
        episodes = [episode for episode in demos.episodes if not demos.tokenized]
        target = success_target(env_settings, episodes, demos.imitable)

    # The tokenizer, and with it rows and lengths.
    if tokenizer is None:
        texts = texts_of([(env_settings, demos.episodes) for env_settings, demos in demonstrations_of])
        vocabulary = sft_settings.model.vocab_size or vocabulary_of(texts)
        tokenizer = train_tokenizer(texts, vocabulary, sft_settings.model.numbers, sft_settings.model.marks)
    lengths = TokenLengths()
    rows: list[LabelledRow] = []
    for env_settings, demos in demonstrations_of:
        stray = SKIPPED if demos.tokenized else PROMPT  # a message of weight 0 is not predicted at all
        rows += tokenized_rows(demos.episodes, context_of(env_settings, tokenizer), stray, on_episode=lengths.add)

    # The model, whose shape follows from the lengths.
    first_env = settings_per_environment(settings)[0]
    shape = derived_shape(first_env, len(tokenizer), lengths, environment_of(first_env))
    model = base or create(shape, tokenizer, sft_settings.seed)
    derived: Derived = {
        "rollout.max_tokens": lengths.response,
        "optimizer.learning_rate": rate_of(parameters_of(model)),
    }
    if len(demonstrations_of) == 1:
        derived["sft.mistake_rate"] = demonstrations_of[0][1].mistakes
    if base is None:
        sizes = {"num_layers": shape.layers, "hidden_size": shape.width, "vocab_size": shape.vocabulary}
        derived |= {f"sft.model.{name}": size for name, size in sizes.items()} | {POSITIONS: shape.context}
    keep_base(sft_settings, work)
    limit = int(getattr(model.config, "max_position_embeddings", shape.context))
    save_folder(model, tokenizer, work / "start", files)
    formats = formats_for(settings.device, config_of(model).get_text_config().hidden_size)
    progress = {"derived": derived, "expected": asdict(target) if target else None, "formats": asdict(formats)}
    durable.write_text(work / _PROGRESS, _text(progress))
    store_rows(rows, work / "rows.npz", limit)


def parameters_of(model: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in model.parameters())


def demonstrations_in(settings: RunSettings, tokenizer: PreTrainedTokenizerBase | None, quiet: bool) -> Demonstrations:
    """The demonstrations of the run's only environment: played, or those of the file ``sft.data``.

    Raises: InvalidArgument for a file that cannot be used.
    """
    sft_settings = sft_of(settings)
    path = sft_settings.data_path
    if path is None:
        _require_thoughts(settings, [])  # no expert writes any
        return demonstrations(settings, quiet)
    if not holds_conversations(path, sft_settings.data_columns):
        of_episodes = of_file(settings, path)
        _require_thoughts(settings, of_episodes.episodes)
        return of_episodes
    if tokenizer is None:
        raise InvalidArgument(
            f"sft.data={path} holds conversations, which requires a pretrained model",
            key="sft.data",
            advice="set sft.base_model",
        )
    context = settings.only_environment.context
    columns, variables = sft_settings.data_columns, context.template
    episodes = read_messages(path, tokenizer, sft_settings.episodes, columns, variables=variables, calls=context.calls)
    return Demonstrations(episodes, mistakes=0.0, tokenized=True)


def _require_thoughts(settings: RunSettings, episodes: list[Episode]) -> None:
    """Raise :class:`SettingsError` if the prompt asks for thoughts that no demonstration has.

    The model would learn to ignore a part of every prompt.
    """
    prompt = settings.only_environment.context.prompt
    has_thoughts = any("<think>" in turn.response for episode in episodes for turn in episode.turns)
    if prompt.asks_for_thoughts and not has_thoughts:
        raise SettingsError(
            f"the prompt {prompt.name or 'of the settings'} asks for <think>, but no demonstration contains a thought",
            advice="set context.prompt=action, or give sft.data with thoughts",
        )


def settings_per_environment(settings: RunSettings) -> list[RunSettings]:
    """The settings of each environment alone, with its part of the demonstrations by weight."""
    sft_settings = sft_of(settings)
    envs = settings.all_environments
    if not settings.environments:
        return [settings]
    total_weight = sum(env.weight for env in envs)
    counts = [max(1, round(env.weight / total_weight * sft_settings.episodes)) for env in envs]
    return [
        settings.alone(env).model_copy(update={"sft": sft_settings.model_copy(update={"episodes": count})})
        for env, count in zip(envs, counts, strict=True)
    ]


def texts_of(demonstrations_of: list[tuple[RunSettings, list[Episode]]]) -> list[str]:
    """What a tokenizer is trained on: texts of some demonstrations, and the description of tools."""
    episodes = [episode for _, env_episodes in demonstrations_of for episode in env_episodes]
    sample = episodes[:: max(1, len(episodes) // TOKENIZER_EPISODES)]
    texts = [text for episode in sample for turn in episode.turns for text in (turn.observation, turn.response)]
    for env_settings, env_episodes in demonstrations_of:
        toolbox = action_format_of(env_settings).toolbox
        if toolbox is not None:
            description = "\n".join(
                [*(json.dumps(spec) for spec in toolbox.specs), environment_of(env_settings).instructions]
            )
            texts += [description] * len(env_episodes[:: max(1, len(env_episodes) // 100)])
    return texts


def context_of(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> Context:
    """How the learner is prompted in the run's only environment."""
    return make_context(tokenizer, environment_of(settings), **dict(settings.context))


def _text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
