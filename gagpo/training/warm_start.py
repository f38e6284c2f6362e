"""The warm start: supervised training of a small model on demonstrations, before it learns from its own episodes."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gagpo.agents.agent import ExpertAgent
from gagpo.agents.context import Context
from gagpo.agents.episodes import Episode
from gagpo.agents.progress import track
from gagpo.agents.prompts import STYLES
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import make_world, tasks_of
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.pool import Pool
from gagpo.settings import RunSettings, SettingsError
from gagpo.training.batch import Row, build_rows, micro_batches
from gagpo.training.logprobs import token_logprobs
from gagpo.training.small_model import build, save_folder

SAID, READ = 0, 1
RECIPE = "warm_start.json"  # in the model's folder: what it was made with


def warm_start(settings: RunSettings, quiet: bool = False) -> Path:
    """Make the folder that ``settings.model`` names: demonstrations, tokenizer, model, supervised training.

    Raises :class:`gagpo.settings.SettingsError` when the settings hold no ``warm_start`` section.
    """
    if settings.warm_start is None:
        raise SettingsError(f"run {settings.name!r} has no warm_start section, so there is nothing to train on")
    if (
        settings.context.admissible
    ):  # an episode does not keep what was admissible, so prompts would differ from training
        raise SettingsError("a warm start cannot show admissible actions: set context.admissible=false")
    warm = settings.warm_start
    episodes = demonstrations(settings, quiet)
    texts = [text for episode in episodes for turn in episode.turns for text in (turn.observation, turn.response)]
    model, tokenizer = build(warm.model, texts, warm.seed)
    world = make_world(settings.environment.id, settings.environment.kwargs)
    context = Context(
        tokenizer,
        STYLES[settings.context.style],
        world.instructions,
        settings.context.history,
        settings.context.admissible,
        settings.context.template,
    )
    for episode in episodes:
        tokenize(episode, context)
    rows = [row for row in build_rows(episodes, trainable_only=True) if row.length < warm.model.context]
    fit(model, rows, settings, quiet)
    folder = Path(settings.model)
    save_folder(model, tokenizer, folder, {RECIPE: json.dumps(recipe(settings), indent=1) + "\n"})
    return folder


def recipe(settings: RunSettings) -> dict[str, Any]:
    """All that decides what :func:`warm_start` makes, as plain data."""
    names = ("environment", "context", "warm_start")
    return {name: json.loads(getattr(settings, name).model_dump_json()) for name in names}


def made_otherwise(settings: RunSettings) -> str:
    """Which setting the folder that ``settings.model`` names was made with another value of; '' if none or unknown."""
    try:
        made = json.loads((Path(settings.model) / RECIPE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""  # somebody else's folder: nothing says how it was made
    then, now = _flat(made), _flat(recipe(settings))
    for name in sorted(then.keys() | now.keys()):
        if then.get(name) != now.get(name):
            return f"{name}: {then.get(name)} then, {now.get(name)} now"
    return ""


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {name: value}
    return {path: leaf for key, part in value.items() for path, leaf in _flat(part, f"{name}.{key}".strip(".")).items()}


def demonstrations(settings: RunSettings, quiet: bool = False) -> list[Episode]:
    """Episodes on the training tasks: those the expert solved, and all of the hasty player's share.

    Both stray with probability ``noise``. What the hasty player does is rarely what the task asks: a model that learned
    from both knows the language and the ways, and has to find out for itself which of the two habits pays.
    """
    warm = settings.warm_start
    assert warm is not None
    environment, rolling = settings.environment, settings.rollout
    world = make_world(environment.id, environment.kwargs)
    tasks = tasks_of(world, environment.split).require()
    order = np.random.default_rng([warm.seed, 0]).permutation(len(tasks))
    names = [tasks.ids[i] for i in itertools.islice(itertools.cycle(order), warm.episodes)]
    hurried = round(warm.hasty * len(names))
    kept: list[Episode] = []
    with track("demonstrations", len(names), "episodes", quiet) as meter:
        for expert, mine in ((True, names[hurried:]), ("hasty", names[:hurried])):
            if not mine:
                continue
            kwargs = {**environment.kwargs, "split": environment.split, "expert": expert}
            with Pool(environment.id, kwargs, workers=rolling.workers) as pool:
                jobs = group_jobs(mine, 1, warm.seed, f"warm start {expert}")
                agent = ExpertAgent(warm.noise)
                episodes, _ = rollout(agent, pool, jobs, lockstep=False, on_finish=lambda _: meter.advance())
            if expert is True and not any(episode.success for episode in episodes):
                raise InvalidArgument(f"the expert of {environment.id} solved none of {len(episodes)} episodes")
            kept += [episode for episode in episodes if episode.turns and (episode.success or expert == "hasty")]
    return kept


def tokenize(episode: Episode, context: Context) -> None:
    """Give every turn the tokens an engine would have read and sampled for these very words."""
    for number, turn in enumerate(episode.turns):
        turn.prompt_ids = context.prompt(episode.turns[:number], turn.observation)
        turn.response_ids = context.response(turn.response)


def fit(model: torch.nn.Module, rows: Sequence[Row], settings: RunSettings, quiet: bool = False) -> list[float]:
    """Train ``model`` in place; returns the mean loss on response tokens (nats per token) of every step.

    The loss is that mean plus ``observations`` times the mean over all other tokens. The learning rate rises over the
    first twentieth of the steps and falls to zero along a cosine.
    """
    warm, training = settings.warm_start, settings.training
    assert warm is not None
    rows = [everything(row) if warm.observations else replace(row, turn_K=0 * row.turn_K) for row in rows]
    rng = np.random.default_rng([warm.seed, 1])
    pair = optimizers(model)
    rise = max(1, warm.steps // 20)
    losses: list[float] = []
    model.train()
    supply = _endless(rows, rng)
    with track("warm start", warm.steps, "steps", quiet) as meter:
        for step in range(warm.steps):
            scale = min(1.0, (step + 1) / rise) * 0.5 * (1 + math.cos(math.pi * step / warm.steps))
            for optimizer in pair:
                for group in optimizer.param_groups:
                    group["lr"] = warm.learning_rate * scale
            batch = list(itertools.islice(supply, warm.batch))
            said = sum(int((row.turn_K == SAID).sum()) for row in batch)
            read = max(1, sum(len(row.turn_K) for row in batch) - said)
            total = 0.0
            for made in micro_batches(batch, training.microbatch_tokens):
                micro = made.to(settings.device)
                with autocast(settings):
                    logprob_K, _ = token_logprobs(model, micro, entropy="none")
                said_K = micro.turn_K == SAID
                loss = -logprob_K[said_K].sum() / said
                total += loss.item()
                (loss - warm.observations * logprob_K[~said_K].sum() / read).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            losses.append(total)
            meter.advance(note=f"loss {total:.3f}")
            if not math.isfinite(total):
                raise FloatingPointError(
                    f"the warm start's loss became {total} at step {step}; lower its learning_rate"
                )
    model.eval()
    return losses


def optimizers(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers (Jordan et al. 2024), AdamW for embeddings, gains and biases.

    Muon's steps are scaled to the size of AdamW's (Liu et al. 2025), so both take the same learning rate.
    """
    embedded = {id(p) for m in model.modules() if isinstance(m, torch.nn.Embedding) for p in m.parameters()}
    head = model.get_output_embeddings()  # type: ignore[operator]
    embedded |= {id(p) for p in head.parameters()}
    matrices = [p for p in model.parameters() if p.ndim == 2 and id(p) not in embedded]
    others = [p for p in model.parameters() if p.ndim != 2 or id(p) in embedded]
    return [
        torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, weight_decay=0.01, betas=(0.9, 0.98)),
    ]


def everything(row: Row) -> Row:
    """The row with every token but the first to be predicted; ``turn_K`` tells what is said from what is read."""
    place_K = np.arange(1, len(row.ids))
    turn_K = np.where(np.isin(place_K, row.place_K), SAID, READ)
    return replace(row, place_K=place_K, turn_K=turn_K, token_K=place_K, logprob_K=np.zeros(len(place_K), np.float32))


def autocast(settings: RunSettings) -> Any:
    """Mixed precision as ``training.precision`` says; weights stay as they are."""
    return torch.autocast(
        torch.device(settings.device).type, torch.bfloat16, enabled=settings.training.precision == "bfloat16"
    )


def _endless(rows: Sequence[Row], rng: np.random.Generator) -> Iterator[Row]:
    """Every row once, in random order, again and again."""
    while True:
        yield from (rows[i] for i in rng.permutation(len(rows)))
