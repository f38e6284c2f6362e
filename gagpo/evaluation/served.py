"""Evaluating a model behind a server, on the same panels as any other; and having it play the demonstrations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium

from gagpo.agents.api.agent import ApiAgent, ChatSettings
from gagpo.agents.api.client import ApiClient, ApiError, ApiSettings, Usage
from gagpo.agents.episodes import Episode
from gagpo.agents.prompts import STYLES
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.envs.errors import InvalidArgument
from gagpo.envs.lookup import find_spec, playing
from gagpo.envs.pool import Pool
from gagpo.eval.evaluate import choose_panel, evaluate
from gagpo.eval.journal import Journal
from gagpo.eval.results import EvalResult

PREFIX = "openai:"


@dataclass(frozen=True)
class ApiReport:
    """What came out. usage: of this evaluation, what it had spent before it was interrupted included."""

    result: EvalResult
    episodes: list[Episode]
    usage: dict[str, float]
    journal: Path | None


def evaluate_api(
    api: ApiSettings,
    *,
    environment: str,
    split: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    tasks: int | None = None,
    tries: int = 1,
    temperature: float | None = 0.4,
    max_tokens: int = 512,
    style: str = "tags",
    history: int | str = "full",
    admissible: bool = False,
    reasoning: Literal["drop", "keep"] = "drop",
    seed: int = 0,
    workers: int = 2,
    concurrency: int = 16,
    journals: Path | None = Path("evals"),
    quiet: bool = False,
) -> ApiReport:
    """Evaluate the model that ``api`` names. Called again with the same arguments it goes on where it was killed.

    journals: folder of the journals, one for each model, panel and settings; None to keep nothing. Raises
    :class:`gagpo.agents.api.client.ApiError` when the server gives up or a limit is reached: what is finished is kept.
    """
    arguments = playing(environment, kwargs or {}, split)
    world = _world(environment, arguments)
    panel = choose_panel(world.tasks(split or world.splits[-1]), tasks)
    chat = _chat(world, style, history, admissible, reasoning, temperature, max_tokens)
    material = world.material(arguments)
    key = {
        "model": f"{PREFIX}{api.model}",
        "server": api.base_url,
        "extra": dict(api.extra),
        "environment": environment,
        "kwargs": material,
        "split": panel.split,
        "panel": panel.hash,
        "seed": seed,
        "talk": {**asdict(chat), "style": asdict(chat.style)},
    }
    client = ApiClient(api)
    agent = ApiAgent(client, chat, concurrency)
    with (
        Journal(journals, key) if journals is not None else nullcontext() as journal,
        Pool(environment, arguments, workers=workers) as pool,
    ):
        client.spent = _spent_before(journal)
        try:
            result, episodes = evaluate(
                agent,
                pool,
                panel,
                environment=environment,
                kwargs=material,
                model=f"{PREFIX}{api.model}",
                temperature=temperature,
                seed=seed,
                tries=tries,
                concurrency=concurrency,
                lockstep=False,
                quiet=quiet,
                journal=journal,
            )
        except ApiError as error:
            raise _with_advice(error, journal, len(panel) * tries) from None
        finally:
            agent.close()
            _note_lost(journal, client.spent)
    return ApiReport(result, episodes, vars(client.spent), journal.path if journal else None)


def play_demonstrations(
    api: ApiSettings,
    environment: str,
    kwargs: Mapping[str, Any],
    tasks: list[str],
    *,
    seed: int = 0,
    temperature: float | None = 0.7,
    max_tokens: int = 512,
    style: str = "plain",
    history: int | str = "full",
    workers: int = 2,
    concurrency: int = 16,
    journals: Path | None = None,
    on_finish: Callable[[], None] | None = None,
) -> list[Episode]:
    """One episode of each task, played by the model behind a server: demonstrations for a small model to learn from.

    The episodes are in the order of ``tasks`` (a task may stand there several times); keep those with ``success``. With
    ``journals`` what was finished before an interruption is not played again. on_finish: called once for every episode.
    """
    world = _world(environment, kwargs)
    chat = _chat(world, style, history, False, "drop", temperature, max_tokens)
    jobs = group_jobs(tasks, 1, seed, "lesson")
    jobs = [type(job)(job.task, job.group, job.group, job.seed, job.environment_seed) for job in jobs]
    key: dict[str, Any] = {"model": f"{PREFIX}{api.model}", "server": api.base_url}
    key |= {"environment": environment, "seed": seed}
    key |= {"kwargs": dict(kwargs), "lesson": tasks, "talk": {**asdict(chat), "style": asdict(chat.style)}}
    client = ApiClient(api)
    agent = ApiAgent(client, chat, concurrency)
    with (
        Journal(journals, key) if journals is not None else nullcontext() as journal,
        Pool(environment, dict(kwargs), workers=workers) as pool,
    ):
        client.spent = _spent_before(journal)
        played = dict(journal.episodes) if journal else {}
        missing = [job for job in jobs if (job.task, job.sample) not in played]
        if on_finish is not None:
            for _ in range(len(jobs) - len(missing)):
                on_finish()

        def finished(episode: Episode) -> None:
            if journal:
                journal.append(episode)
            if on_finish:
                on_finish()

        try:
            new, _ = rollout(agent, pool, missing, concurrency=concurrency, lockstep=False, on_finish=finished)
        except ApiError as error:
            raise _with_advice(error, journal, len(jobs)) from None
        finally:
            agent.close()
            _note_lost(journal, client.spent)
    played.update({(episode.task, episode.sample): episode for episode in new})
    return [played[job.task, job.sample] for job in jobs]


def _world(environment: str, kwargs: Mapping[str, Any] | None) -> Any:
    """The environment in this process, to ask about its tasks. Nothing here needs torch, and nothing imports it."""
    return gymnasium.make(find_spec(environment), disable_env_checker=True, **dict(kwargs or {})).unwrapped


def _chat(
    world: Any,
    style: str,
    history: int | str,
    admissible: bool,
    reasoning: Literal["drop", "keep"],
    temperature: float | None,
    max_tokens: int,
) -> ChatSettings:
    if style not in STYLES:
        raise InvalidArgument(f"unknown style {style!r}; choose one of {', '.join(STYLES)}")
    if reasoning not in ("drop", "keep"):
        raise InvalidArgument(f"reasoning is drop or keep, got {reasoning!r}")
    instructions = getattr(world, "instructions", "")
    return ChatSettings(STYLES[style], instructions, history, admissible, reasoning, temperature, max_tokens)


def _spent_before(journal: Journal | None) -> Usage:
    if journal is None:
        return Usage()
    names = {"requests": "requests", "prompt": "prompt_tokens", "completion": "completion_tokens"}
    names |= {"cached": "cached_tokens", "reasoning": "reasoning_tokens"}
    counts = {field: int(journal.spent(name)) for field, name in names.items()}
    return Usage(**counts, cost=journal.spent("cost"))


def _note_lost(journal: Journal | None, spent: Usage) -> None:
    """Enter what went into episodes that did not end, so that limits hold over all interruptions."""
    if journal is None:
        return
    kept = _spent_before(journal)
    lost = {
        "requests": spent.requests - kept.requests,
        "prompt_tokens": spent.prompt - kept.prompt,
        "completion_tokens": spent.completion - kept.completion,
        "cached_tokens": spent.cached - kept.cached,
        "cost": spent.cost - kept.cost,
    }
    if lost["requests"] > 0:
        journal.note_spent(lost)


def _with_advice(error: ApiError, journal: Journal | None, wanted: int) -> ApiError:
    kept = len(journal.episodes) if journal else 0
    advice = f"; {kept} of {wanted} episodes are kept, the same command goes on" if journal else ""
    return type(error)(f"{error}{advice}")
