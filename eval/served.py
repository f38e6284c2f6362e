"""Evaluate a model behind a server, with requests and costs in the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import partial

from gagpo.agents.api.agent import ApiAgent, ChatSettings
from gagpo.agents.api.answer import Usage
from gagpo.agents.api.client import ApiClient, ApiError
from gagpo.agents.api.settings import PREFIX, ApiSettings
from gagpo.base.errors import InvalidArgument
from gagpo.envs.tools import tools_of
from gagpo.eval.evaluate import EvaluatedAgent, EvaluationOutcome, PreparedEvaluation
from gagpo.eval.journal import Journal

CONCURRENCY = 16  # episodes at once, each with one request; servers of others limit requests


def evaluate_served(prepared: PreparedEvaluation) -> EvaluationOutcome:
    """Evaluate ``openai:NAME`` at the request's server, by default OpenAI's own."""
    request = prepared.request
    conditions = prepared.conditions
    env = prepared.env
    if getattr(env, "sends_requests", False):
        raise InvalidArgument(
            "needs a model whose tokens gagpo samples, not one at a server", where=conditions.environment
        )
    api = request.server or ApiSettings(request.model.removeprefix(PREFIX))
    chat = ChatSettings(
        conditions.context.prompt,
        getattr(env, "instructions", ""),
        conditions.context.history,
        conditions.context.admissible,
        conditions.temperature,
        conditions.max_tokens,
        bool(getattr(env, "multiline", False)),
    )
    client = ApiClient(api)
    agent = ApiAgent(client, chat, request.concurrency or CONCURRENCY, tools_of(env))
    evaluated = EvaluatedAgent(
        agent,
        f"{PREFIX}{api.model}",
        chat.temperature,
        prepared.kwargs,
        deterministic=False,  # answers take unequal times, so each episode goes on as soon as its answer is here
        concurrency=CONCURRENCY,
        identity={"server": api.base_url},
        session=partial(_billed, agent),
    )
    return replace(prepared.run(evaluated), usage=vars(client.spent))


@contextmanager
def _billed(agent: ApiAgent, journal: Journal | None, episodes: int) -> Iterator[None]:
    """Record requests and costs in the journal, so that limits hold across interruptions; close the agent at the end.

    An error says how many of the ``episodes`` are in the journal.
    """
    client = agent.client
    if journal is not None:
        # The cost of a request that was interrupted is unknown.
        counts = {count.name: int(journal.spent(count.name)) for count in fields(Usage) if count.name != "cost"}
        client.spent = Usage(**counts, cost=journal.spent("cost"))
        client.record = lambda change: journal.note_spent({name: n for name, n in vars(change).items() if n})
    try:
        yield
    except ApiError as error:
        advice = ""
        if journal:
            advice = f"; {len(journal.episodes)} of {episodes} episodes are kept, repeat the command to continue"
        raise type(error)(f"{error}{advice}") from None
    finally:
        agent.close()
