"""Supervised fine-tuning (SFT): from demonstrations to the model folder that RL starts from."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from gagpo.agents.context import Context
from gagpo.agents.setup import make_context
from gagpo.base import durable
from gagpo.base.errors import InvalidArgument
from gagpo.data.episodes import Episode
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.derived import RECIPE, Derived, recipe, require_same_recipe
from gagpo.settings.resolve import take_derived_values
from gagpo.sft.demonstrations import Demonstrations, demonstrations, environment_of, of_file, phrasing_of, sft_of
from gagpo.sft.derived import Lengths, derived_shape, rate_of, resolved, vocabulary_of, words
from gagpo.sft.fit import fit
from gagpo.sft.messages import read_messages, rows_of
from gagpo.sft.panel import Expected, Panel, Say, expected
from gagpo.sft.rows import PROMPT, SKIPPED, LabelledRow, store_rows, stored_rows, tokenized_rows
from gagpo.sft.small_model import create, save_folder, train_tokenizer

_TOKENIZED = 2000  # episodes that a tokenizer is trained on; more change nothing
ALPHA = 32.0  # of an adapter: its share is scaled by alpha / rank
_FOUND = "found.json"  # in the folder of unfinished work: what was derived, and what a model is compared with


def sft(settings: RunSettings, quiet: bool = False, say: Say = lambda _: None) -> Path:
    """Make the folder that ``settings.model`` names: demonstrations, tokenizer, model, training.

    Unfinished work is kept in a folder next to it; the same call resumes it.

    say: called with what was derived and measured, and what that means for RL.

    Returns: the model's folder.
    """
    if settings.sft is None:
        raise SettingsError(f"run {settings.name!r} has no section 'sft'")
    if settings.environments and settings.sft.steps is None:
        raise SettingsError("SFT in several environments needs sft.steps")
    if settings.environments and settings.sft.data is not None:
        raise SettingsError("sft.data is for a run of one environment: remove it, or name one environment")
    if any(env.context.admissible for env in settings.all_environments):
        # episodes do not store the admissible actions, so prompts would differ from those of RL
        raise SettingsError("SFT cannot show admissible actions: set context.admissible=false")
    folder = Path(settings.model)
    made = recipe(settings)
    work = folder.with_name(f"{folder.name}.under-way")
    require_same_recipe(work, settings)
    model, tokenizer, rows = prepare(settings, work, {RECIPE: _text(made)}, quiet)
    found = json.loads((work / _FOUND).read_text(encoding="utf-8"))
    say(words(found["derived"]))
    settings = resolved(take_derived_values(settings, found["derived"]), parameters_of(model))
    if (rank := sft_of(settings).lora) is not None:
        adapters.inject(model, rank, ALPHA, adapters.ALL_LINEAR, sft_of(settings).seed)
    panel = Panel(settings, tokenizer, Expected(**found["expected"]), say) if found["expected"] else None

    def texts() -> dict[str, str]:
        measured = panel.state() if panel else []
        return {RECIPE: _text({**made, "derived": found["derived"], "measured": measured})}

    def save(place: Path, model: torch.nn.Module) -> None:
        whole = adapters.merge(copy.deepcopy(model)) if adapters.is_adapted(model) else model
        save_folder(whole, tokenizer, place, texts())

    every = sft_of(settings).every is not None
    keep_best = partial(save, work / "best") if every else None
    fit(model, rows, settings, quiet, work, partial(save, work / "latest"), panel, on_best=keep_best)
    if every and panel is not None and panel.best is not None and panel.best is not panel.measures[-1]:
        say(f"the model of step {panel.best.step} is kept")
        model = load_model(str(work / "best"))
    save(folder, model)
    shutil.rmtree(work)
    if panel is not None:
        say(panel.verdict())
    return folder


def prepare(
    settings: RunSettings, work: Path, more: Mapping[str, str], quiet: bool
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase, list[LabelledRow]]:
    """The model before training, its tokenizer and its rows, from ``work`` or made there.

    more: texts of further files in the model's folder, by file name.
    """
    if not (work / "rows.npz").exists():
        _make(settings, work, more, quiet)
    start = str(work / "start")
    return load_model(start, device=settings.device), load_tokenizer(start), stored_rows(work / "rows.npz")


def _make(settings: RunSettings, work: Path, more: Mapping[str, str], quiet: bool) -> None:
    """Play demonstrations, train the tokenizer and create the model."""
    chosen = sft_of(settings)
    base = load_model(chosen.base_model) if chosen.base_model is not None else None
    tokenizer = load_tokenizer(chosen.base_model) if chosen.base_model is not None else None
    played = [(part, shown_in(part, tokenizer, quiet)) for part in parts(settings)]
    compared: Expected | None = None
    if len(played) == 1:
        part, shown = played[0]
        known = [episode for episode in shown.episodes if not shown.tokenized]
        compared = expected(part, known, shown.imitable)

    # The tokenizer, and with it rows and lengths.
    if tokenizer is None:
        texts = texts_of([(part, shown.episodes) for part, shown in played])
        vocabulary = chosen.model.vocab_size or vocabulary_of(texts)
        tokenizer = train_tokenizer(texts, vocabulary, chosen.model.numbers, chosen.model.marks)
    lengths, rows = Lengths(), []
    for part, shown in played:
        stray = SKIPPED if shown.tokenized else PROMPT  # a message of weight 0 is not predicted at all
        rows += tokenized_rows(shown.episodes, context_of(part, tokenizer), stray, seen=lengths.add)

    # The model, whose shape follows from the lengths.
    first = parts(settings)[0]
    shape = derived_shape(first, len(tokenizer), lengths, environment_of(first))
    model = base or create(shape, tokenizer, chosen.seed)
    derived: Derived = {
        "rollout.max_tokens": lengths.response,
        "optimizer.learning_rate": rate_of(parameters_of(model)),
    }
    if len(played) == 1:
        derived["sft.mistake_rate"] = played[0][1].mistakes
    if base is None:
        sizes = {"num_layers": shape.layers, "hidden_size": shape.width, "vocab_size": shape.vocabulary}
        derived |= {f"sft.model.{name}": size for name, size in {**sizes, "context": shape.context}.items()}
    limit = int(getattr(model.config, "max_position_embeddings", shape.context))
    save_folder(model, tokenizer, work / "start", more)
    found = {"derived": derived, "expected": asdict(compared) if compared else None}
    durable.write_text(work / _FOUND, _text(found))
    store_rows(rows, work / "rows.npz", limit)


def parameters_of(model: torch.nn.Module) -> int:
    """How many numbers the weights are."""
    return sum(parameter.numel() for parameter in model.parameters())


def shown_in(settings: RunSettings, tokenizer: PreTrainedTokenizerBase | None, quiet: bool) -> Demonstrations:
    """The demonstrations of the run's only environment: played, or those of the file ``sft.data``.

    Raises: InvalidArgument for a file that cannot be used.
    """
    data, most = sft_of(settings).data, sft_of(settings).episodes
    if data is None:
        return demonstrations(settings, quiet)
    path = Path(data)
    if "messages" not in next((row for _, row in rows_of(path)), {}):
        return of_file(settings, path)
    if tokenizer is None:
        raise InvalidArgument(
            f"sft.data={path} holds conversations, which requires a pretrained model: set sft.base_model"
        )
    return Demonstrations(read_messages(path, tokenizer, most), mistakes=0.0, tokenized=True)


def parts(settings: RunSettings) -> list[RunSettings]:
    """The settings of each environment alone, with its share of the demonstrations."""
    chosen, envs = sft_of(settings), settings.all_environments
    if not settings.environments:
        return [settings]
    whole = sum(env.weight for env in envs)
    counts = [max(1, round(env.weight / whole * chosen.episodes)) for env in envs]
    return [
        settings.alone(env).model_copy(update={"sft": chosen.model_copy(update={"episodes": count})})
        for env, count in zip(envs, counts, strict=True)
    ]


def texts_of(played: list[tuple[RunSettings, list[Episode]]]) -> list[str]:
    """What a tokenizer is trained on: texts of some demonstrations, and the description of tools."""
    episodes = [episode for _, own in played for episode in own]
    shown = episodes[:: max(1, len(episodes) // _TOKENIZED)]
    texts = [text for episode in shown for turn in episode.turns for text in (turn.observation, turn.response)]
    for part, own in played:
        toolbox = phrasing_of(part).toolbox
        if toolbox is not None:
            description = "\n".join([*(json.dumps(spec) for spec in toolbox.specs), environment_of(part).instructions])
            texts += [description] * len(own[:: max(1, len(own) // 100)])
    return texts


def context_of(settings: RunSettings, tokenizer: PreTrainedTokenizerBase) -> Context:
    """How the learner is prompted in the run's only environment."""
    return make_context(tokenizer, environment_of(settings), **dict(settings.context))


def _text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
