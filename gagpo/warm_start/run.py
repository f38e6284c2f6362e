"""The warm start: supervised training of a small model on demonstrations, before it learns from its own episodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from gagpo.agents.context import Context
from gagpo.agents.engines.base import Tokenizer
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.prompts import STYLES
from gagpo.agents.setup import make_world
from gagpo.base import durable
from gagpo.envs.base import TextEnv
from gagpo.envs.tools import tools_of
from gagpo.learning.batch import Row
from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.derived import RECIPE, Derived, applied, open_to
from gagpo.warm_start.demonstrations import demonstrations
from gagpo.warm_start.derived import (
    Lengths,
    players_of,
    rate_of,
    shape_of,
    vocabulary_of,
    words,
)
from gagpo.warm_start.fit import fit
from gagpo.warm_start.panel import Expected, Panel, Say, chance, shown_at_panel
from gagpo.warm_start.recipe import recipe, refuse_other
from gagpo.warm_start.rows import learned_rows, store_rows, stored_rows, tokenize
from gagpo.warm_start.small_model import create, save_folder, train_tokenizer
from gagpo.warm_start.teacher import phrasing_of

_TOKENIZED = 2000  # episodes that a tokenizer learns its words from; more teach it nothing
_WORLD = "world.json"  # in what is under way: what the demonstrations showed of the world


def warm_start(settings: RunSettings, quiet: bool = False, say: Say = lambda _: None) -> Path:
    """Make the folder that ``settings.model`` names: demonstrations, tokenizer, model, supervised training.

    What is under way lies in a folder beside it, so that the same call goes on where the last one was interrupted.
    ``say`` is told what was derived from the world, what the panel measured, and what that means. Raises
    :class:`gagpo.settings.SettingsError` when the settings hold no ``warm_start`` section, and when what is under way
    was begun with other ones.
    """
    if settings.warm_start is None:
        raise SettingsError(f"run {settings.name!r} has no warm_start section, so there is nothing to train on")
    if settings.environments and (settings.warm_start.steps is None or settings.warm_start.panel):
        raise SettingsError("a warm start in several worlds measures nothing: set warm_start.steps, and panel to 0")
    if any(
        world.context.admissible for world in settings.worlds
    ):  # episodes do not keep what was admissible: prompts would differ from training
        raise SettingsError("a warm start cannot show admissible actions: set context.admissible=false")
    folder = Path(settings.model)
    made = recipe(settings)
    work = folder.with_name(f"{folder.name}.under-way")
    refuse_other(work, settings)
    model, tokenizer, rows = prepare(settings, work, {RECIPE: _text(made)}, quiet)
    derived, expected = _known(work)
    settings = applied(settings, derived)
    if derived:
        say(words(derived))
    warm = settings.warm_start
    panel = Panel(settings, tokenizer, expected, say) if warm is not None and warm.panel else None

    def texts() -> dict[str, str]:
        return {RECIPE: _text({**made, "derived": derived, "measured": panel.state() if panel else []})}

    def keep(model: torch.nn.Module, step: int) -> None:
        save_folder(model, tokenizer, work / "latest", texts())

    fit(model, rows, settings, quiet, work, keep, panel)
    save_folder(model, tokenizer, folder, texts())
    shutil.rmtree(work)
    if panel is not None:
        say(panel.verdict())
    return folder


def prepare(
    settings: RunSettings, work: Path, more: Mapping[str, str], quiet: bool
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase, list[Row]]:
    """The model before training, its tokenizer and the rows to train on: read from ``work``, made there if missing.

    more: texts to put beside the model, by file name.
    """
    if not (work / "rows.npz").exists():
        _make(settings, work, more, quiet)
    start = str(work / "start")
    return load_model(start, device=settings.device), load_tokenizer(start), stored_rows(work / "rows.npz")


def _make(settings: RunSettings, work: Path, more: Mapping[str, str], quiet: bool) -> None:
    """Demonstrations, tokenizer and model, each derived from the ones before as far as the settings leave it open."""
    given, first = settings, settings.alone(settings.worlds[0])
    derived = players_of(first, _environment(first))
    settings = applied(given, derived)
    warm = settings.warm_start
    assert warm is not None
    played = [(part, demonstrations(part, quiet, work)) for part in _parts(settings)]
    expected = Expected(0.0, 1.0, imitable=False)
    if warm.panel:  # of one world
        expected = Expected(chance(settings), shown_at_panel(settings, played[0][1]), warm.player != "random")

    # The tokenizer and, with it, rows and lengths.
    model: torch.nn.Module | None = None
    if warm.base is not None:
        model, tokenizer = load_model(warm.base), load_tokenizer(warm.base)
    else:
        worlds = [_environment(part) for part, _ in played] if warm.lexicon else []
        names = [name for world in worlds for name in getattr(world, "lexicon", list)()]
        episodes = [episode for _, own in played for episode in own]
        shown = episodes[:: max(1, len(episodes) // _TOKENIZED)]
        texts = [text for episode in shown for turn in episode.turns for text in (turn.observation, turn.response)]
        texts += [told for part, own in played for told in [_told(part)] * len(own[:: max(1, len(own) // 100)]) if told]
        derived |= vocabulary_of(settings, texts)
        warm = applied(given, derived).warm_start or warm
        tokenizer = train_tokenizer([*texts, *names], warm.model.vocabulary, warm.model.numbers, warm.model.marks)
        del episodes, shown  # what is tokenized below is to be forgotten
    lengths = Lengths()
    rows: list[Row] = []
    for part, own in played:
        context = _context(part, tokenizer, _environment(part))
        while own:
            episode = own.pop(0)  # its prompts take twenty times the space of its row
            tokenize(episode, context)
            lengths.add(episode)
            rows += learned_rows(episode, warm)

    # The model, whose shape follows from the lengths, and the rate from the shape.
    derived |= lengths.derived(settings, _environment(first))
    if model is None:
        derived |= shape_of(settings, len(tokenizer), lengths.longest)
        warm = applied(given, derived).warm_start or warm
        model = create(warm.model, tokenizer, warm.seed)
    derived |= rate_of(sum(parameter.numel() for parameter in model.parameters()))
    limit = int(getattr(model.config, "max_position_embeddings", warm.model.context))
    save_folder(model, tokenizer, work / "start", more)
    open_ones = {key: value for key, value in derived.items() if open_to(given, key)}
    durable.write_text(work / _WORLD, _text({"derived": open_ones, "expected": asdict(expected)}))
    store_rows([row for row in rows if row.length < limit], work / "rows.npz")


def _parts(settings: RunSettings) -> list[RunSettings]:
    """The settings of each world alone, with its share of the demonstrations; the settings themselves of one world."""
    worlds, warm = settings.worlds, settings.warm_start
    if not settings.environments or warm is None:
        return [settings]
    whole = sum(world.weight for world in worlds)
    counts = [max(1, round(world.weight / whole * warm.episodes)) for world in worlds]
    return [
        settings.alone(world).model_copy(update={"warm_start": warm.model_copy(update={"episodes": count})})
        for world, count in zip(worlds, counts, strict=True)
    ]


def _environment(settings: RunSettings) -> TextEnv:
    environment = settings.only_world.environment
    return make_world(environment.id, environment.kwargs)


def _told(settings: RunSettings) -> str:
    """What the first prompt of a world that is played by calls tells of them; '' of any other world."""
    toolbox = phrasing_of(settings).toolbox
    instructions = _environment(settings).instructions
    return "\n".join([*(json.dumps(spec) for spec in toolbox.specs), instructions]) if toolbox else ""


def _known(work: Path) -> tuple[Derived, Expected]:
    """What :func:`prepare` found out of the world; nothing of one that was begun before it looked."""
    if not (work / _WORLD).exists():
        return {}, Expected(0.0, 1.0, imitable=False)
    found = json.loads((work / _WORLD).read_text(encoding="utf-8"))
    return found["derived"], Expected(**found["expected"])


def _context(settings: RunSettings, tokenizer: Tokenizer, world: TextEnv) -> Context:
    chosen = settings.context
    return Context(
        tokenizer,
        STYLES[chosen.style],
        world.instructions,
        chosen.history,
        chosen.admissible,
        chosen.template,
        tools_of(world),
        chosen.calls,
    )


def _text(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
