"""Evaluating a model behind a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from gagpo.agents.api.agent import ApiAgent, ChatSettings
from gagpo.agents.api.answer import Usage
from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.episodes import Episode
from gagpo.agents.prompts import STYLES
from gagpo.agents.rollout import Job, group_jobs, rollout
from gagpo.agents.setup import make_env
from gagpo.base.errors import InvalidArgument
from gagpo.envs.remote.pool import open_pool
from gagpo.envs.tools import tools_of
from gagpo.eval.evaluate import play_missing
from gagpo.eval.journal import Journal
from gagpo.eval.panel import ChosenPanel, EvaluationOutcome, Player
from gagpo.eval.request import MAX_TOKENS, PREFIX

EPISODES_AT_ONCE = 16


def play(panel: ChosenPanel) -> EvaluationOutcome:
    """Evaluate the model ``openai:NAME`` at ``request.server``, by default OpenAI's own.

    With a folder of journals, the same request continues after an interruption.

    Raises:
        ApiError: the server gives up, or a limit is reached. Finished episodes are kept.
    """
    request = panel.request
    api, context = request.server or ApiSettings(request.model.removeprefix(PREFIX)), request.context
    chat = ChatSettings(
        STYLES[context.style],
        getattr(panel.env, "instructions", ""),
        context.history,
        context.admissible,
        request.reasoning,
        request.sampling_temperature,
        request.max_tokens or MAX_TOKENS,
    )
    client = ApiClient(api)
    agent = ApiAgent(client, chat, request.concurrency or EPISODES_AT_ONCE, tools_of(panel.env))
    player = Player(
        agent,
        f"{PREFIX}{api.model}",
        {"server": api.base_url, "extra": dict(api.extra)},
        chat.temperature,
        panel.kwargs,
        lockstep=False,
        concurrency=EPISODES_AT_ONCE,
        session=partial(_billed, agent),
    )
    return replace(panel.play(player), usage=vars(client.spent))


def play_demonstrations(
    api: ApiSettings,
    environment: str,
    kwargs: Mapping[str, object],
    tasks: list[str],
    *,
    seed: int = 0,
    temperature: float | None = 0.7,
    max_tokens: int = MAX_TOKENS,
    style: str = "plain",
    history: int | str = "full",
    workers: int = 2,
    concurrency: int = EPISODES_AT_ONCE,
    journals: Path | None = None,
    on_finish: Callable[[], None] | None = None,
) -> list[Episode]:
    """One episode of each task, played by the model behind a server: demonstrations for a small model to learn from.

    The episodes are in the order of ``tasks`` (a task may stand there several times); keep those with ``success``. With
    ``journals`` what was finished before an interruption is not played again. on_finish: called once for every episode.
    """
    if style not in STYLES:
        raise InvalidArgument(f"unknown style {style!r}; choose one of {', '.join(STYLES)}")
    env = make_env(environment, kwargs)
    instructions = getattr(env, "instructions", "")
    chat = ChatSettings(STYLES[style], instructions, history, False, "drop", temperature, max_tokens)
    jobs = [replace(job, sample=job.group) for job in group_jobs(tasks, 1, seed, "lesson")]
    key = {
        "model": f"{PREFIX}{api.model}",
        "server": api.base_url,
        "environment": environment,
        "seed": seed,
        "kwargs": dict(kwargs),
        "lesson": tasks,
        "talk": {**asdict(chat), "style": asdict(chat.style)},
    }
    client = ApiClient(api)
    agent = ApiAgent(client, chat, concurrency, tools_of(env))
    with (
        Journal(journals, key) if journals is not None else nullcontext() as journal,
        open_pool(environment, dict(kwargs), workers=workers) as pool,
        _billed(agent, journal, len(jobs)),
    ):

        def play(missing: Sequence[Job], finished: Callable[[Episode], None]) -> list[Episode]:
            return rollout(agent, pool, missing, concurrency=concurrency, lockstep=False, on_finish=finished)[0]

        return play_missing(jobs, journal, play, on_finish or (lambda: None))


@contextmanager
def _billed(agent: ApiAgent, journal: Journal | None, episodes: int) -> Iterator[None]:
    """Count every request in the journal before it is sent, and its cost once known: limits outlive interruptions.

    An error says how many of the ``episodes`` are kept. The agent is closed at the end.
    """
    client = agent.client
    if journal is not None:
        client.spent = _spent_before(journal)
        client.record = partial(_note, journal)
    try:
        yield
    except ApiError as error:
        kept = len(journal.episodes) if journal else 0
        advice = f"; {kept} of {episodes} episodes are kept, the same command goes on" if journal else ""
        raise type(error)(f"{error}{advice}") from None
    finally:
        agent.close()


def _spent_before(journal: Journal) -> Usage:
    """What was spent according to the journal; the cost of a request that was cut off is unknown."""
    counts = {one.name: int(journal.spent(one.name)) for one in fields(Usage) if one.name != "cost"}
    return Usage(**counts, cost=journal.spent("cost"))


def _note(journal: Journal, change: Usage) -> None:
    journal.note_spent({name: amount for name, amount in vars(change).items() if amount})
