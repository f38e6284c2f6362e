"""Programs that ask the gateway through Anthropic's client and through frameworks."""

import pytest

pytest.importorskip("anthropic")
pytest.importorskip("smolagents")

from gagpo.envs.program.messages import Completion
from tests.envs.program.programs import play, running

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
    ],
    ids=["anthropic", "smolagents", "openai-agents"],
)
def test_a_program_with_tools_is_played_to_its_end(tmp_path, source, actions):
    with running(tmp_path, source) as pool:
        first, *_, last, end = events = play(pool, *actions)
        assert end.kind == "step" and end.reward == 1.0, end
        assert "price" in {one["function"]["name"] for one in first.info["request"]["tools"]}
        assert [event.kind for event in events] == ["reset", "step", "step"]
        assert "5" in last.observation
