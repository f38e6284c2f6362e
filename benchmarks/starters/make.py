"""Make the model of a recipe's stage, in the folder that its settings name. Interrupted work resumes.

python -m benchmarks.starters.make benchmarks/starters/alfworld-1.yaml
python -m benchmarks.starters.make benchmarks/starters/alfworld-1.yaml sft.steps=50 model=data/models/try
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from benchmarks.starters import web_pages
from benchmarks.starters.lexicon import lexicon
from benchmarks.starters.players import CorrectedAgent, StubbornExpert
from benchmarks.starters.recipe import Recipe, Variant, load_recipe
from benchmarks.starters.renaming import renamed
from gagpo.agents.setup import language_agent, make_engine, make_env
from gagpo.base.errors import InvalidArgument
from gagpo.base.progress import track
from gagpo.data import Episode
from gagpo.envs.base import Kwargs
from gagpo.model.loading import load_model, load_tokenizer, width_of
from gagpo.model.shape import config_of
from gagpo.settings.derived import RECIPE, require_same_recipe
from gagpo.settings.derived import recipe as settings_of
from gagpo.settings.machine import with_machine_formats
from gagpo.sft.adapter import keep_base, with_adapter
from gagpo.sft.demonstrations import (
    LABEL,
    demonstration_tasks,
    expert_episodes,
    imperfect_episodes,
    rephrase,
    run_episodes,
    sft_of,
)
from gagpo.sft.fit import fit
from gagpo.sft.rows import PROMPT, SKIPPED, LabelledRow, store_rows, stored_rows, tokenized_rows
from gagpo.sft.run import context_of, prepare, texts_of
from gagpo.sft.small_model import create, save_folder, train_tokenizer

EXTRAS = "extras.json"


def make(recipe: Recipe, quiet: bool = False) -> Path:
    """Play the recipe's demonstrations, train on them, and write the model's folder, which is returned.

    Raises:
        gagpo.settings.SettingsError: unfinished work has other settings.
        InvalidArgument: unfinished work has other extras.
    """
    settings = recipe.settings
    folder = Path(settings.model)
    work = folder.with_name(f"{folder.name}.under-way")
    require_same_recipe(work, settings)
    begun = work / "start" / EXTRAS
    if begun.exists() and begun.read_text(encoding="utf-8") != recipe.extras.model_dump_json():
        raise InvalidArgument("was begun with another recipe", where=work, advice="delete it to start again")
    losses = trained(recipe, work, quiet)
    print(f"{folder}: loss {losses[-1]:.3f} after {len(losses)} steps")
    shutil.rmtree(work)
    return folder


def trained(recipe: Recipe, work: Path, quiet: bool = False, keep: bool = True) -> list[float]:
    """The losses of a recipe's training. work: folder of unfinished work. keep: store states and the final model."""
    settings = recipe.settings
    if not (work / "rows.npz").exists():
        start(recipe, work, quiet)
    model, tokenizer, rows = prepare(settings, work, {}, quiet)
    settings = with_machine_formats(settings, config_of(model).get_text_config().hidden_size)
    trained_model = with_adapter(model, sft_of(settings), work, settings.device)
    rate = recipe.rate if recipe.extras.decay is not None else None
    losses = fit(trained_model.model, rows, settings, quiet, work if keep else None, rate=rate)
    if keep:
        texts = {RECIPE: json.dumps(settings_of(settings), indent=1) + "\n"}
        trained_model.save(tokenizer, Path(settings.model), texts)
    return losses


def start(recipe: Recipe, work: Path, quiet: bool = False) -> None:
    """Write to ``work`` what training begins with: rows, tokenizer and model."""
    settings, sft, extras = recipe.settings, sft_of(recipe.settings), recipe.extras
    if sft.base_model is not None:
        model, tokenizer = load_model(sft.base_model), load_tokenizer(sft.base_model)
        rows = rows_of_variants(recipe, tokenizer, work, quiet)
    else:
        episodes = played(recipe, quiet)
        shape, texts = recipe.shape, texts_of([(settings, episodes)])
        names = lexicon() if extras.lexicon else []
        tokenizer = train_tokenizer([*texts, *names], shape.vocabulary, shape.numbers, shape.marks)
        model = create(shape, tokenizer, sft.seed)
        rows = rows_of(recipe, episodes, tokenizer)
    keep_base(sft, work)
    limit = int(model.config.max_position_embeddings)  # type: ignore[union-attr,arg-type]
    texts_beside = {RECIPE: json.dumps(settings_of(settings)), EXTRAS: extras.model_dump_json()}
    save_folder(model, tokenizer, work / "start", texts_beside)
    store_rows(rows, work / "rows.npz", limit)


def rows_of(recipe: Recipe, episodes: list[Episode], tokenizer: PreTrainedTokenizerBase) -> list[LabelledRow]:
    """The demonstrations as the learner reads them; empties ``episodes``."""
    stray = PROMPT if recipe.extras.read_strays else SKIPPED
    return tokenized_rows(episodes, context_of(recipe.settings, tokenizer), stray)


def rows_of_variants(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, work: Path, quiet: bool = False
) -> list[LabelledRow]:
    """The rows of all variants. Those of a variant are stored when it is finished: corrected episodes take hours."""
    # Named for the recipe, so that what another one has left is not taken for its rows.
    record = json.dumps(settings_of(recipe.settings)) + recipe.extras.model_dump_json()
    folder = work / f"demonstrations-{hashlib.sha256(record.encode()).hexdigest()[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    rows: list[LabelledRow] = []
    variants = recipe.variants
    with track("demonstrations", sum(variant.count for variant in variants), "episodes", quiet) as meter:
        for number, variant in enumerate(variants):
            path = folder / f"{number}.npz"
            if path.exists():
                meter.advance(variant.count)
            else:
                episodes = _demonstrations(recipe, variant, number, lambda _: meter.advance())
                store_rows(rows_of(recipe, episodes, tokenizer), path)
            rows += stored_rows(path)
    return rows


def played(recipe: Recipe, quiet: bool = False) -> list[Episode]:
    """The recipe's demonstrations, in the learner's words."""
    if recipe.extras.pages:
        sft = sft_of(recipe.settings)
        drawn = itertools.islice(web_pages.exercises(sft.seed), sft.episodes)
        return [exercise.episode(number) for number, exercise in enumerate(drawn)]
    episodes: list[Episode] = []
    variants = recipe.variants
    with track("demonstrations", sum(variant.count for variant in variants), "episodes", quiet) as meter:
        for number, variant in enumerate(variants):
            episodes += _demonstrations(recipe, variant, number, lambda _: meter.advance())
    return episodes


def _demonstrations(
    recipe: Recipe, variant: Variant, number: int, finished: Callable[[Episode], None]
) -> list[Episode]:
    """The demonstrations in the ``number``-th variant of the environment, in the learner's words."""
    episodes = [episode for episode in _played_in(recipe, variant, number, finished) if episode.turns]
    if variant.renamed:
        rng = np.random.default_rng([sft_of(recipe.settings).seed, number])
        episodes = [renamed(episode, rng) for episode in episodes]
    rephrase(episodes, recipe.settings)
    return episodes


def _played_in(recipe: Recipe, variant: Variant, number: int, finished: Callable[[Episode], None]) -> list[Episode]:
    """The demonstrations as they were played."""
    settings, sft, extras, kwargs = recipe.settings, sft_of(recipe.settings), recipe.extras, variant.kwargs
    names = demonstration_tasks(settings, make_env(settings.only_environment.environment.id, kwargs), variant.count)
    imperfect, corrected = round((sft.mistake_rate or 0.0) * len(names)), round(extras.corrected * len(names))
    agent = StubbornExpert(sft.noise, extras.stubborn)
    label = f"{LABEL} {number}" if number else LABEL
    episodes = expert_episodes(settings, kwargs, agent, names[imperfect + corrected :], f"{label} True", finished)
    episodes += imperfect_episodes(settings, kwargs, agent, names[:imperfect], f"{label} hasty", finished)
    if corrected:
        episodes += run_episodes(
            settings,
            {**kwargs, "expert": True},
            learner(recipe, kwargs),
            names[imperfect : imperfect + corrected],
            f"{label} corrected",
            finished,
            concurrency=settings.rollout.concurrency,
            deterministic=True,
        )
    return episodes


def learner(recipe: Recipe, kwargs: Kwargs) -> CorrectedAgent:
    """The base, which plays and is corrected by the expert."""
    extras = recipe.extras
    base = sft_of(recipe.settings).base_model
    assert base is not None  # the recipe sees to it
    settings = with_machine_formats(recipe.settings, width_of(base))
    sampler = settings.engine
    model = load_model(base, device=settings.device)
    engine = make_engine(
        sampler.options, model, load_tokenizer(base), dtype=sampler.dtype, memory=sampler.gpu_memory_utilization
    )
    agent = language_agent(
        engine,
        make_env(settings.only_environment.environment.id, kwargs),
        settings.rollout.sampling,
        **dict(settings.context),
    )
    return CorrectedAgent(
        agent, extras.takeover, extras.takeover_refused, extras.takeover_repeated, extras.takeover_revisited
    )


def first_losses(path: Path, overrides: Sequence[str], folder: Path) -> list[float]:
    """The losses of a recipe with these overrides. folder: where to work."""
    torch.set_num_threads(1)
    return trained(load_recipe(path, [*overrides, f"model={folder}"]), folder, quiet=True, keep=False)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the model of a recipe's stage.")
    parser.add_argument("recipe", type=Path, help="a file of benchmarks/starters")
    parser.add_argument("overrides", nargs="*", help="section.key=value")
    given = parser.parse_args()
    recipe = load_recipe(given.recipe, given.overrides)
    torch.set_num_threads(recipe.settings.threads or torch.get_num_threads())
    print(make(recipe))


if __name__ == "__main__":
    main()
