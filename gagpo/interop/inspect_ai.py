"""Our environments as Inspect tasks: ``inspect eval gagpo/alfworld --model openai/gpt-5-mini``.

``-T`` takes split, tasks (their number), prompt, history, admissible and the environment's arguments.
"""

from __future__ import annotations

import asyncio
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import Score, Scorer, Target, ci_wilson, grouped, mean, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from gagpo.interop.games import Conversation, Kwargs, TextGame, opened, rows


@solver
def play(env_id: str, kwargs: Kwargs, prompt: str, history: int | str, admissible: bool) -> Solver:
    """Play the sample's task, one generation per turn."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        game = await asyncio.to_thread(TextGame, env_id, kwargs)
        conversation = Conversation(game, prompt, history, admissible)
        system = next((one["content"] for one in conversation.prompt.opening(game.instructions)), "")
        head = [ChatMessageSystem(content=system)] if system else []
        try:
            text: str | None = await conversation.start(state.metadata["task"], state.metadata["seed"])
            state.messages = list(head)
            # With a window, every turn has new messages. Inspect's limits set `completed`.
            while text is not None and not state.completed:
                if history != "full":
                    state.messages = list(head)
                state.messages.append(ChatMessageUser(content=text))
                state = await generate(state)
                text = await conversation.answer(state.output.completion, cut=state.output.stop_reason == "max_tokens")
        finally:
            turns = conversation.turns
            state.metadata |= {
                "success": game.success,
                "truncated": game.truncated or not game.done,
                "reward": game.reward,
                "invalid": sum(not turn.valid for turn in turns),
                "turns": len(turns),
                "rewards": [turn.reward for turn in turns],
                "observations": [turn.observation for turn in turns],
            }
            game.close()
        return state

    return solve


@scorer(metrics=[mean(), stderr(), ci_wilson(), grouped(mean(), "task_type", all=False)])
def success() -> Scorer:
    """1 for a solved task, else 0; with intervals and by task type."""

    async def score(state: TaskState, target: Target) -> Score:
        facts = {"success": False, "reward": 0.0, "turns": 0, **state.metadata}
        answer = f"reward {facts['reward']:g} after {facts['turns']} turns"
        return Score(value=float(facts["success"]), answer=answer, metadata={"reward": facts["reward"]})

    return score


def _task(
    env_id: str, split: str | None = None, tasks: int | None = None, prompt: str = "tags", *,
    history: int | str = "full", admissible: bool = False, **kwargs: Any,
) -> Task:  # fmt: skip
    with opened(env_id, kwargs) as game:
        chosen = split or game.splits[-1]
        split_hash = game.tasks(chosen).hash
    samples = [Sample(id=row["task"], input=row["task"], metadata=row) for row in rows(env_id, kwargs, chosen, tasks)]
    return Task(
        dataset=MemoryDataset(samples, name=f"{env_id} {chosen}"),
        solver=play(env_id, kwargs, prompt, history, admissible),
        scorer=success(),
        metadata={"environment": env_id, "split": chosen, "split_hash": split_hash, "kwargs": kwargs},
    )


@task
def env(env_id: str, **options: Any) -> Task:
    """Any environment: ``inspect eval gagpo/env -T env_id=guess:Guess-v0``."""
    return _task(env_id, **options)


@task
def alfworld(**options: Any) -> Task:
    return _task("gagpo/ALFWorld-v0", **options)


@task
def webshop(**options: Any) -> Task:
    return _task("gagpo/WebShop-v0", **options)


@task
def maths(**options: Any) -> Task:
    return _task("gagpo/Math-v0", **{"prompt": "whole", **options})


@task
def sql(**options: Any) -> Task:
    return _task("gagpo/SQL-v0", **options)
