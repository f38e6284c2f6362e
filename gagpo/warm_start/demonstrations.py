"""The episodes that a warm start learns from: an expert's, a hasty player's, a teacher's, a corrected learner's."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from gagpo.agents.agent import Agent, CorrectedAgent, ExpertAgent
from gagpo.agents.engines.base import Sampling
from gagpo.agents.episodes import Episode
from gagpo.agents.model import load_model, load_tokenizer
from gagpo.agents.setup import language_agent, make_engine, make_world, tasks_of
from gagpo.base.progress import Meter, track
from gagpo.envs.base import Kwargs, TextEnv
from gagpo.settings import RunSettings
from gagpo.warm_start.players import lucky, play, require_solved, wandering
from gagpo.warm_start.teacher import in_learner_words, phrasing_of, teacher_episodes


def demonstrations(settings: RunSettings, quiet: bool = False, work: Path | None = None) -> list[Episode]:
    """Episodes on the training tasks: what the expert or the teacher solved, and all of anybody else's.

    Expert and hasty player stray with probability ``noise``. What the hasty player does is rarely what the task asks: a
    model that learned from both knows the language and the ways, and has to find out for itself which of the two habits
    pays; an expert who wanders leaves as much to find out. A teacher's finished lessons are kept in ``work``, so that
    the same call goes on after an interruption or a limit that was reached. ``mixtures`` share the episodes among
    variants of the environment.
    """
    warm = settings.warm_start
    assert warm is not None
    shares = [mixture.share for mixture in warm.mixtures] or [1.0]
    kept: list[Episode] = []
    with track("demonstrations", warm.episodes, "episodes", quiet) as meter:
        for number, (kwargs, share) in enumerate(zip(variants(settings), shares, strict=True)):
            kept += _played(settings, kwargs, round(share / sum(shares) * warm.episodes), number, meter, work)
    phrasing = phrasing_of(settings)
    for episode in kept:
        in_learner_words(episode, phrasing)
    return kept


def variants(settings: RunSettings) -> list[Kwargs]:
    """The arguments of every variant of the environment that demonstrations are taken from; one without mixtures."""
    mixtures = settings.warm_start.mixtures if settings.warm_start is not None else []
    own = settings.only_world.environment.kwargs
    return [{**own, **mixture.kwargs} for mixture in mixtures] or [dict(own)]


def _played(
    settings: RunSettings, own: Kwargs, count: int, number: int, meter: Meter, work: Path | None
) -> list[Episode]:
    """The demonstrations of one variant of the environment, the ``number``-th."""
    warm, rolling = settings.warm_start, settings.rollout
    assert warm is not None
    world = make_world(settings.only_world.environment.id, own)
    tasks = tasks_of(world, settings.only_world.environment.split).require()
    order = np.random.default_rng([warm.seed, 0]).permutation(len(tasks))
    names = [tasks.ids[i] for i in itertools.islice(itertools.cycle(order), count)]
    hasty, own_way = (round(part * len(names)) for part in (warm.hasty, warm.corrected))
    label = f"warm start {number} " if number else "warm start "

    def finished(_: Episode) -> None:
        meter.advance()

    if warm.player == "random":
        return lucky(settings, own, names, f"{label}random", finished)
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
        wanders = player == "True" and warm.wander > 0
        if wanders:
            agent = wandering(settings, own, chosen, warm.wander)
        elif player == "corrected":
            agent = _corrected(world, settings)
            concurrency, lockstep = rolling.concurrency, True
        kwargs = {**own, "expert": player if player == "hasty" else True}
        episodes = play(
            settings, kwargs, agent, chosen, f"{label}{player}", finished, concurrency=concurrency, lockstep=lockstep
        )

        # Of the expert, what it solved; of the others everything, as they seldom do what the task asks.
        everything = wanders or player != "True"
        if not everything:
            require_solved(episodes, settings)
        kept += [episode for episode in episodes if episode.turns and (episode.success or everything)]
    return kept


def _corrected(world: TextEnv, settings: RunSettings) -> Agent:
    """The model that is gone on with, corrected by the expert."""
    warm, sampler = settings.warm_start, settings.engine
    assert warm is not None and warm.base is not None  # the settings see to it
    engine = make_engine(sampler.name, load_model(warm.base), load_tokenizer(warm.base), **sampler.arguments())
    sampling = Sampling(settings.rollout.temperature, settings.rollout.max_tokens)
    context = settings.context
    learner = language_agent(engine, world, sampling, style=context.style, history=context.history, calls=context.calls)
    return CorrectedAgent(learner, warm.takeover, warm.takeover_refused)
