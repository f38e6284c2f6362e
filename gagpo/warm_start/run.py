"""The warm start: supervised training of a small model on demonstrations, before it learns from its own episodes."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from gagpo.agents.agent import Agent, CorrectedAgent, ExpertAgent
from gagpo.agents.context import Context
from gagpo.agents.engines.base import Sampling
from gagpo.agents.episodes import Episode
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.progress import Meter, track
from gagpo.agents.prompts import STYLES
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_engine, make_world, tasks_of
from gagpo.envs import durable
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.pool import Pool
from gagpo.learning.batch import Row, build_rows
from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.warm_start import WarmStartSettings
from gagpo.warm_start.fit import RESPONSE, STRAY, fit
from gagpo.warm_start.small_model import build, save_folder
from gagpo.warm_start.teacher import teacher_episodes

_TOKENIZED = 2000  # episodes that a tokenizer learns its words from; more teach it nothing
RECIPE = "warm_start.json"  # in the model's folder: what it was made with
TAUGHT_BY = ("model", "style", "temperature", "max_tokens")  # what of a teacher decides what it plays


def warm_start(settings: RunSettings, quiet: bool = False) -> Path:
    """Make the folder that ``settings.model`` names: demonstrations, tokenizer, model, supervised training.

    What is under way lies in a folder beside it, so that the same call goes on where the last one was interrupted.
    Raises :class:`gagpo.settings.SettingsError` when the settings hold no ``warm_start`` section, and when what is
    under way was begun with other ones.
    """
    if settings.warm_start is None:
        raise SettingsError(f"run {settings.name!r} has no warm_start section, so there is nothing to train on")
    if settings.context.admissible:  # episodes do not keep what was admissible: prompts would differ from training
        raise SettingsError("a warm start cannot show admissible actions: set context.admissible=false")
    folder = Path(settings.model)
    more = {RECIPE: json.dumps(recipe(settings), indent=1) + "\n"}
    work = folder.with_name(f"{folder.name}.under-way")
    refuse_other(work, settings)
    model, tokenizer, rows = prepare(settings, work, more, quiet)

    def keep(model: torch.nn.Module, step: int) -> None:
        save_folder(model, tokenizer, work / "latest", more)

    fit(model, rows, settings, quiet, work, keep)
    save_folder(model, tokenizer, folder, more)
    shutil.rmtree(work)
    return folder


def prepare(
    settings: RunSettings, work: Path, more: Mapping[str, str], quiet: bool
) -> tuple[torch.nn.Module, PreTrainedTokenizerBase, list[Row]]:
    """The model before training, its tokenizer and the rows to train on: read from ``work``, made there if missing.

    more: texts to put beside the model, by file name.
    """
    warm = settings.warm_start
    assert warm is not None
    if not (work / "rows.npz").exists():
        world = make_world(settings.environment.id, settings.environment.kwargs)
        episodes = demonstrations(settings, quiet, work)
        if warm.base is not None:
            model, tokenizer = load_model(warm.base), load_tokenizer(warm.base)
        else:
            names: list[str] = getattr(world, "lexicon", list)() if warm.lexicon else []
            shown = episodes[:: max(1, len(episodes) // _TOKENIZED)]
            texts = [text for episode in shown for turn in episode.turns for text in (turn.observation, turn.response)]
            model, tokenizer = build(warm.model, [*texts, *names], warm.seed)
        context = Context(
            tokenizer,
            STYLES[settings.context.style],
            world.instructions,
            settings.context.history,
            settings.context.admissible,
            settings.context.template,
        )
        limit = int(getattr(model.config, "max_position_embeddings", warm.model.context))
        rows: list[Row] = []
        while episodes:
            episode = episodes.pop(0)  # its prompts take twenty times the space of its row
            tokenize(episode, context)
            rows += [row for row in learned_rows(episode, warm) if row.length < limit]
        save_folder(model, tokenizer, work / "start", more)
        _store_rows(rows, work / "rows.npz")
    rows = _stored_rows(work / "rows.npz")
    return load_model(str(work / "start")), load_tokenizer(str(work / "start")), rows


def learned_rows(episode: Episode, warm: WarmStartSettings) -> list[Row]:
    """The rows of a demonstration; ``turn_K`` is RESPONSE where a response is learned and STRAY where it is skipped.

    With ``read_strays`` moves that strayed are not in the row: they count among what is read.
    """
    if warm.read_strays:
        rows = build_rows([episode], trainable_only=True)
        return [replace(row, turn_K=np.full(len(row.turn_K), RESPONSE)) for row in rows]
    strays = np.asarray([not turn.trainable for turn in episode.turns])
    rows = [replace(row, turn_K=np.where(strays[row.turn_K], STRAY, RESPONSE)) for row in build_rows([episode])]
    return [row for row in rows if (row.turn_K == RESPONSE).any()]


def _store_rows(rows: Sequence[Row], path: Path) -> None:
    """Token ids, response places and what kind they are, of all rows, one after the other."""
    with durable.replacing(path) as fresh, fresh.open("wb") as file:
        np.savez(
            file,
            ids=np.concatenate([row.ids for row in rows]),
            places=np.concatenate([row.place_K for row in rows]),
            kinds=np.concatenate([row.turn_K for row in rows]),
            lengths=np.asarray([(len(row.ids), len(row.place_K)) for row in rows]),
        )


def _stored_rows(path: Path) -> list[Row]:
    with np.load(path, allow_pickle=False) as stored:
        ids, places, kinds, lengths = (stored[name] for name in ("ids", "places", "kinds", "lengths"))
    ends = np.cumsum(lengths, axis=0)
    rows = []
    for (id_end, place_end), (id_count, place_count) in zip(ends, lengths, strict=True):
        # Rows lie one after the other, each with so many tokens and so many places.
        spot = slice(place_end - place_count, place_end)
        own = ids[id_end - id_count : id_end]
        none = np.zeros(place_count, np.float32)
        rows.append(Row(own, places[spot], kinds[spot], np.arange(place_count), none))
    return rows


def recipe(settings: RunSettings) -> dict[str, Any]:
    """All that decides what :func:`warm_start` makes, as plain data."""
    names = ("environment", "context", "warm_start")
    made = {name: json.loads(getattr(settings, name).model_dump_json()) for name in names}
    teacher = (made["warm_start"] or {}).get("teacher")
    if teacher:  # where it runs, how fast and at what price decides nothing
        made["warm_start"]["teacher"] = {name: teacher[name] for name in TAUGHT_BY}
    return made


def recipe_difference(settings: RunSettings) -> str:
    """Which setting the folder that ``settings.model`` names was made with another value of; '' if none or unknown."""
    for name, then, now in _differences(Path(settings.model), settings):
        return f"{name}: {then} then, {now} now"
    return ""


def _differences(folder: Path, settings: RunSettings) -> list[tuple[str, object, object]]:
    """Name, value then and value now of every setting that the model in ``folder`` was not made with."""
    try:
        made = json.loads((folder / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []  # somebody else's folder: nothing says how it was made
    then, now = _flat(made), _flat(recipe(settings))
    names = sorted(then.keys() | now.keys())
    return [(name, then.get(name), now.get(name)) for name in names if then.get(name) != now.get(name)]


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, part in value.items() for path, leaf in _flat(part, f"{name}.{key}".strip(".")).items()}


def refuse_other(work: Path, settings: RunSettings) -> None:
    """Raise :class:`SettingsError` if what is under way in ``work`` was begun with settings that make another model.

    The number of steps may still be changed, and how often the state is written.
    """
    for name, then, now in _differences(work / "start", settings):
        if name not in ("warm_start.steps", "warm_start.save_minutes"):
            raise SettingsError(
                f"{work} was begun with other settings ({name}: {then} then, {now} now); delete it to begin anew"
            )


def demonstrations(settings: RunSettings, quiet: bool = False, work: Path | None = None) -> list[Episode]:
    """Episodes on the training tasks: those the expert or the teacher solved, and all of the hasty player's share.

    Expert and hasty player stray with probability ``noise``. What the hasty player does is rarely what the task asks: a
    model that learned from both knows the language and the ways, and has to find out for itself which of the two habits
    pays. A teacher's finished lessons are kept in ``work``, so that the same call goes on after an interruption or a
    limit that was reached. ``mixtures`` share the episodes among variants of the environment.
    """
    warm = settings.warm_start
    assert warm is not None
    shares = [mixture.share for mixture in warm.mixtures] or [1.0]
    kept: list[Episode] = []
    with track("demonstrations", warm.episodes, "episodes", quiet) as meter:
        for number, (kwargs, share) in enumerate(zip(variants(settings), shares, strict=True)):
            kept += _played(settings, kwargs, round(share / sum(shares) * warm.episodes), number, meter, work)
    return kept


def variants(settings: RunSettings) -> list[Kwargs]:
    """The arguments of every variant of the environment that demonstrations are taken from; one without mixtures."""
    mixtures = settings.warm_start.mixtures if settings.warm_start is not None else []
    own = settings.environment.kwargs
    return [{**own, **mixture.kwargs} for mixture in mixtures] or [dict(own)]


def _played(
    settings: RunSettings, own: Kwargs, count: int, number: int, meter: Meter, work: Path | None
) -> list[Episode]:
    """The demonstrations of one variant of the environment, the ``number``-th."""
    warm = settings.warm_start
    assert warm is not None
    environment, rolling = settings.environment, settings.rollout
    world = make_world(environment.id, own)
    tasks = tasks_of(world, environment.split).require()
    order = np.random.default_rng([warm.seed, 0]).permutation(len(tasks))
    names = [tasks.ids[i] for i in itertools.islice(itertools.cycle(order), count)]
    hasty, own_way = (round(part * len(names)) for part in (warm.hasty, warm.corrected))
    label = f"warm start {number} " if number else "warm start "
    kept: list[Episode] = []
    for player, chosen in (
        ("True", names[hasty + own_way :]),
        ("hasty", names[:hasty]),
        ("corrected", names[hasty : hasty + own_way]),
    ):
        if not chosen:
            continue
        if player == "True" and warm.teacher is not None:
            kept += teacher_episodes(settings, warm.teacher, own, chosen, meter, work)
            continue

        # Who acts: the world's expert or hasty player, hundreds of episodes at once, or a model, as many as it samples.
        agent: Agent = ExpertAgent(warm.noise, warm.stubborn)
        concurrency, lockstep = 256, False
        if player == "corrected":
            assert warm.base is not None  # the settings see to it
            agent = _corrected(warm.base, world, settings)
            concurrency, lockstep = rolling.concurrency, True
        kwargs = {**own, "split": environment.split, "expert": player if player == "hasty" else True}
        jobs = group_jobs(chosen, 1, warm.seed, f"{label}{player}")
        with Pool(environment.id, kwargs, workers=rolling.workers) as pool:
            episodes, _ = rollout(
                agent, pool, jobs, concurrency=concurrency, lockstep=lockstep, on_finish=lambda _: meter.advance()
            )

        # Of the expert, what it solved; of the others everything, as they seldom do what the task asks.
        if player == "True" and not any(episode.success for episode in episodes):
            errors = [str(episode.info["error"]) for episode in episodes if "error" in episode.info]
            reason = f"; {len(errors)} failed, the first: {errors[0]}" if errors else ""
            raise InvalidArgument(f"the expert of {environment.id} solved none of {len(episodes)} episodes{reason}")
        kept += [episode for episode in episodes if episode.turns and (episode.success or player != "True")]
    return kept


def _corrected(model: str, world: TextEnv, settings: RunSettings) -> Agent:
    """The model that is gone on with, corrected by the expert."""
    sampler = settings.engine
    engine = make_engine(sampler.name, load_model(model), load_tokenizer(model), **sampler.arguments())
    sampling = Sampling(settings.rollout.temperature, settings.rollout.max_tokens)
    learner = language_agent(engine, world, sampling, style=settings.context.style, history=settings.context.history)
    return CorrectedAgent(learner)


def tokenize(episode: Episode, context: Context) -> None:
    """Give every turn the tokens an engine would have read and sampled for these very words."""
    for number, turn in enumerate(episode.turns):
        turn.prompt_ids = context.prompt(episode.turns[:number], turn.observation)
        turn.response_ids = context.response(turn.response)
