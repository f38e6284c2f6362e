"""An agent program plays the same episodes as gagpo's own loop, and learns."""

import json

import pytest

pytest.importorskip("uvicorn")

from gagpo.agents.engines.base import Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_env
from gagpo.base.errors import GagpoError
from gagpo.envs.pool.opening import open_pool
from gagpo.eval.models import evaluate
from gagpo.eval.results import EvalResult
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.training.launch import train
from tests.commands.pages import ROOT, blocks
from tests.rejections import rejects

PAGE = {block.file: block.text for block in blocks(ROOT / "docs" / "train-your-agent.md") if block.file}
FEW = {"train": 1, "valid_seen": 1, "valid_unseen": 12}


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """Writes the page's agent for some games, with their tasks; gives the arguments of both environments."""

    def write(counts):
        monkeypatch.chdir(tmp_path)
        reference = {"size": "small", "max_turns": 15, "counts": counts}
        (tmp_path / "player.py").write_text(PAGE["player.py"].replace("counts=COUNTS", f"counts={counts}"))
        env = make_env("gagpo/ALFWorld-v0", reference)
        rows = [("train", id) for id in env.tasks("train").ids] + [("test", id) for id in env.tasks("valid_unseen").ids]
        lines = (json.dumps({"id": id, "split": split}) + "\n" for split, id in rows)
        (tmp_path / "tasks.jsonl").write_text("".join(lines))
        return reference, {"agent": "player:play", "tasks": "tasks.jsonl"}

    return write


def sampled(turn):
    return (
        turn.prompt_ids.tolist(),
        turn.response_ids.tolist(),
        turn.logprobs.tobytes(),
        turn.state,
        turn.action,
        turn.reward,
    )


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_program_plays_the_episodes_of_our_own_loop_token_for_token(rooms, temperature):
    model, tokenizer = load_model("starter:alfworld"), load_tokenizer("starter:alfworld")
    played = []
    for name, kwargs in zip(("gagpo/ALFWorld-v0", "gagpo/Program-v0"), rooms(FEW), strict=True):
        env = make_env(name, kwargs)
        agent = language_agent(TransformersEngine(model, tokenizer), env, Sampling(temperature, 8))
        tasks = env.tasks(env.splits[-1]).ids
        with open_pool(name, kwargs, workers=1) as pool:
            played.append(rollout(agent, pool, group_jobs(tasks, 2, seed=3))[0])
    actual, expected = (
        [(e.task, e.success, e.reward, e.info.get("rewritten", 0), *(map(sampled, e.turns))) for e in episodes]
        for episodes in played
    )
    assert actual == expected and len(actual) == 24
    assert any(episode.success for episode in played[1])


def test_an_evaluation_plays_the_last_split_that_has_tasks(rooms, tmp_path):
    kwargs = rooms({"train": 2, "valid_seen": 1, "valid_unseen": 2})[1]
    requests = {"environment": "gagpo/Program-v0", "kwargs": kwargs, "max_tokens": 8, "quiet": True}
    assert evaluate("starter:alfworld", **requests).task_set.split == "test"
    rows = [row for row in (tmp_path / "tasks.jsonl").read_text().splitlines() if "train" in row]
    (tmp_path / "tasks.jsonl").write_text("\n".join(rows))
    assert evaluate("starter:alfworld", **requests).task_set.split == "train"
    with rejects(GagpoError, "test", key="split", advice="add rows"):
        evaluate("starter:alfworld", split="test", **requests)


BROKEN = """
from openai import BadRequestError, InternalServerError

async def play(task, client):
    turns, reasons = [{"role": "user", "content": "go"}], []
    tool = {"type": "function", "function": {"name": "price", "parameters": {"type": "object"}}}
    for options in ({"tools": [tool]}, {}, {"tools": [tool]}, {}):
        try:
            said = await client.chat.completions.create(model="any", messages=turns, **options)
            turns += [{"role": "assistant", "content": said.choices[0].message.content}, turns[0]]
        except (BadRequestError, InternalServerError) as error:
            reasons.append("in none of the formats" in str(error))
    return {"reward": 1.0 if reasons == [True, True] else -1.0}
"""


@pytest.mark.parametrize("deterministic", [True, False])
def test_requests_that_no_template_renders_are_answered_and_the_run_goes_on(tmp_path, monkeypatch, tiny, deterministic):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"broken_{deterministic}.py").write_text(BROKEN)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "split": "train"}\n{"id": "b", "split": "train"}\n')
    kwargs = {"agent": f"broken_{deterministic}:play", "tasks": "tasks.jsonl"}
    model, tokenizer = tiny
    tokenizer.chat_template = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}{% endfor %}"
    )
    env = make_env("gagpo/Program-v0", kwargs)
    agent = language_agent(TransformersEngine(model, tokenizer), env, Sampling(1.0, 4))
    with open_pool("gagpo/Program-v0", kwargs) as pool:
        episodes, _ = rollout(agent, pool, group_jobs(["a", "b"], 2, seed=1), deterministic=deterministic)
    assert [(e.outcome, e.reward, len(e.turns), e.info["refused"]) for e in episodes] == [("terminated", 1.0, 2, 2)] * 4


@pytest.mark.slow
def test_training_a_program_raises_its_success(rooms, tmp_path):
    rooms({"train": 600, "valid_seen": 1, "valid_unseen": 72})
    (tmp_path / "player.yaml").write_text(PAGE["player.yaml"])
    run = train("player.yaml", quiet=True)
    before, after = (EvalResult.load(run.folder / f"evals/{name}-test.json") for name in ("before", "after"))
    assert after.success.value >= before.success.value + 0.15
