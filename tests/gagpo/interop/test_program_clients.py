"""Programs that ask the gateway through Anthropic's client and through frameworks."""

import json

import numpy as np
import pytest
import yaml

pytest.importorskip("anthropic")
pytest.importorskip("pydantic_ai")
pytest.importorskip("smolagents")
pytest.importorskip("tests.envs.program.programs")

from gagpo.agents.agent import LanguageAgent
from gagpo.agents.call_formats import FORMATS
from gagpo.agents.engines.base import Response, Sampling
from gagpo.agents.program_context import ProgramContext
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.data import build_rows, read_episodes
from gagpo.envs.gateway.messages import Completion
from gagpo.envs.tools import ToolCall
from gagpo.eval.results import EvalResult
from gagpo.sft.small_model import ModelShape, build
from gagpo.training.launch import train
from tests.agents.template_families import CHATML, CHATML_ASK
from tests.conftest import TEXTS
from tests.envs.program.programs import TALK, play, running

pytestmark = pytest.mark.interop

ANTHROPIC = """
from anthropic import Anthropic
client, tool = Anthropic(), {"name": "price", "input_schema": {"type": "object", "properties": {}}}
talk = [user("What does the lamp cost?")]
first = client.messages.create(model="any", max_tokens=9, messages=talk, tools=[tool])
used = first.content[0]
talk += [{"role": "assistant", "content": first.content}]
talk += [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": used.id, "content": "5"}]}]
with client.messages.stream(model="any", max_tokens=9, messages=talk, tools=[tool]) as stream:
    said = "".join(stream.text_stream)
print(json.dumps({"reward": float((used.input, said) == ({"item": "lamp"}, "5"))}))
"""
SMOLAGENTS = '''
from smolagents import OpenAIServerModel, ToolCallingAgent, tool

@tool
def price(item: str) -> int:
    """What it costs.

    Args:
        item: the thing
    """
    return 5

place, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
agent = ToolCallingAgent(tools=[price], model=OpenAIServerModel(model_id="any", api_base=place, api_key=key))
said = agent.run("What does the lamp cost?", max_steps=3)
print(json.dumps({"reward": float(str(said) == "5")}))
'''
OPENAI_AGENTS = """
sys.path[:] = [one for one in sys.path if not os.path.isdir(f"{one}/agents/engines")]  # ours has the same name
from agents import Agent, Runner, function_tool, set_tracing_disabled

@function_tool
def price(item: str) -> int:
    return 5

set_tracing_disabled(True)
agent = Agent("seller", instructions="Be brief.", tools=[price], model="any")
said = Runner.run_sync(agent, "What does the lamp cost?").final_output
print(json.dumps({"reward": float(said == "5")}))
"""
PYDANTIC_AI = """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel

agent = Agent(OpenAIChatModel("any"), system_prompt="Be brief.")

@agent.tool_plain
def price(item: str) -> int:
    return 5

said = agent.run_sync("What does the lamp cost?").output
print(json.dumps({"reward": float(said == "5")}))
"""
FRAMEWORKS = {"smolagents": SMOLAGENTS, "openai-agents": OPENAI_AGENTS, "pydantic-ai": PYDANTIC_AI}


def call(name, **arguments):
    function = {"name": name, "arguments": arguments}
    return Completion(
        "", [{"id": f"call{name[:5]:x<5}", "type": "function", "function": function}], "tool_calls"
    ).action


@pytest.mark.parametrize(
    ("source", "actions"),
    [
        (ANTHROPIC, [call("price", item="lamp"), Completion("5").action]),
        (SMOLAGENTS, [call("price", item="lamp"), call("final_answer", answer="5")]),
        (OPENAI_AGENTS, [call("price", item="lamp"), Completion("5").action]),
        (PYDANTIC_AI, [call("price", item="lamp"), Completion("5").action]),
    ],
    ids=["anthropic", *FRAMEWORKS],
)
def test_a_program_with_tools_is_played_to_its_end(tmp_path, source, actions):
    with running(tmp_path, source) as pool:
        first, *_, last, end = events = play(pool, *actions)
        assert end.kind == "step" and end.reward == 1.0, end
        assert "price" in {tool["function"]["name"] for tool in first.info["request"]["tools"]}
        assert [event.kind for event in events] == ["reset", "step", "step"]
        assert "5" in last.observation


class ScriptedEngine:
    """Samples these texts."""

    dtype, max_length, shares_weights = "float32", 100_000, True

    def __init__(self, context, *texts):
        self.context, self.tokenizer, self.texts = context, context.tokenizer, list(texts)

    def generate(self, requests, sampling):
        sampled = [self.context.response(self.texts.pop(0)) for _ in requests]
        return [Response(ids, np.zeros(len(ids), np.float32), True) for ids in sampled]

    def release(self, session):
        pass


@pytest.fixture
def plain():
    """A tiny model whose chat template has no place for tools. Its context has room for the prompts of smolagents."""
    shape = ModelShape(layers=2, width=32, heads=2, feed_forward=48, vocabulary=500, context=32768)
    model, tokenizer = build(shape, TEXTS, seed=0)
    tokenizer.chat_template = CHATML + CHATML_ASK
    return model, tokenizer


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_whose_template_has_no_tools_calls_them(tmp_path, plain, framework):
    _, tokenizer = plain
    context = ProgramContext(tokenizer, find_prompt("plain"))
    write = FORMATS["hermes"].write
    last = write([ToolCall("final_answer", {"answer": "5"})]) if framework == "smolagents" else "5"
    engine = ScriptedEngine(context, write([ToolCall("price", {"item": "lamp"})]), last)
    with running(tmp_path, FRAMEWORKS[framework]) as pool:
        agent = LanguageAgent(engine, context, Sampling(max_tokens=64))
        ((episode,), _) = rollout(agent, pool, group_jobs(["a"], 1, seed=0))
    assert (episode.outcome, episode.reward, len(episode.turns)) == ("terminated", 1.0, 2), episode.info
    prompts = [tokenizer.decode(turn.prompt_ids) for turn in episode.turns]
    assert all('<tools>\n{"name": "price"' in prompt for prompt in prompts)
    if framework == "smolagents":  # which sends calls and answers back as text of its own
        assert "Observation:\n5" in prompts[1]
        return
    assert "<tool_response>\n5\n</tool_response>" in prompts[1] and episode.info["rewritten"] == 0
    assert len(build_rows([episode])) == 1


REWARDED = """
try:
    SOURCE
except Exception as error:  # this model calls no tool
    said = type(error).__name__
print(json.dumps({"reward": len(str(said)) % 3 / 2}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_whose_template_has_no_tools_is_trained_and_evaluated(tmp_path, monkeypatch, plain, framework):
    monkeypatch.chdir(tmp_path)
    for segment in plain:
        segment.save_pretrained(tmp_path / "model")
    source = FRAMEWORKS[framework].rpartition("print(")[0].strip().replace("\n", "\n    ")
    (tmp_path / "seller.py").write_text(TALK + REWARDED.replace("SOURCE", source))
    rows = [{"id": f"{split}{number}", "split": split} for split in ("train", "test") for number in range(2)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = {
        "name": framework,
        "model": str(tmp_path / "model"),
        "environment": {
            "id": "gagpo/Program-v0",
            "kwargs": {"command": "python seller.py", "tasks": "tasks.jsonl", "max_turns": 3},
        },
        "rollout": {"tasks": 2, "group_size": 2, "max_tokens": 8},
        "algorithm": {"preset": "gagpo", "kl": {"coefficient": 0.0}},
        "optimizer": {"learning_rate": 1e-3},
        "training": {"iterations": 2, "save_episodes_every": 1},
        "evaluation": {"splits": ["test"]},
    }
    (tmp_path / "seller.yaml").write_text(yaml.safe_dump(config))
    run = train("seller.yaml", quiet=True)
    assert [row["failed_episodes"] for row in run.metrics] == [0, 0]
    for name in ("before", "after"):
        assert EvalResult.load(run.folder / f"evals/{name}-test.json").success
    for path in sorted((run.folder / "episodes").glob("*.jsonl")):
        for record in read_episodes(path):
            assert '<tools>\n{"name": "price"' in record["turns"][0]["sent"]
