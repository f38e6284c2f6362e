"""Tool calls of a model behind a server."""

import json

import pytest

from gagpo.agents.api.agent import ApiAgent, ChatSettings
from gagpo.agents.api.client import ApiClient
from gagpo.agents.api.settings import ApiSettings
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.toolbox import MOST_CALLS
from gagpo.envs.pool import WorkerPool
from tests.agents.raw_server import answering, reply

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def call(arguments, name="act", number=0):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def message(*calls, content=None):
    arguments = {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {})}
    choice = {"index": 0, "finish_reason": "tool_calls" if calls else "stop", "message": arguments}
    return reply(json.dumps({"choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}).encode())


def played(history, *answers, turns):
    """An episode against these answers in turn, and the agent that played it."""
    requests = []
    with answering(lambda number: [answers[number]]) as server:
        client = ApiClient(ApiSettings("m", f"{server.url}/v1", timeout=20.0, attempts=1))
        submit = client.submit
        client.submit = lambda messages, *rest: (
            requests.append((json.loads(json.dumps(messages)), rest[2])) or submit(messages, *rest)
        )
        agent = ApiAgent(client, ChatSettings(find_prompt("tools"), "Walk.", history), 1)
        with WorkerPool(CORRIDOR, {"max_turns": turns}, workers=0) as pool:
            (episode,), _ = rollout(agent, pool, group_jobs(["door-03"], 1, seed=0), deterministic=False)
        agent.close()
    return episode, requests


LEFT = '{"command": "left"}'


def test_calls_are_made_in_order_and_answered_by_their_ids():
    both = message(call(LEFT, number=1), call('{"command": 3}', number=2), content="I go.")
    hermes = f'Then <tool_call>{{"name": "act", "arguments": {LEFT}}}</tool_call>'
    answers = (both, message(content=hermes), message(content="Nothing."), message(call(LEFT)))
    episode, requests = played("full", *answers, turns=5)
    assert [tools[0]["function"]["name"] for _, tools in requests] == ["act"] * 4
    assert [turn.invalid for turn in episode.turns] == ["not parsed", "", "not parsed", ""]
    assert [turn.action for turn in episode.turns] == ["left", "left", "", "left"]
    assert episode.turns[0].response.startswith("I go.\n<tool_call>")
    assert episode.turns[0].sent.startswith('[tools]\n{"type": "function"') and "\n\n[user]\n" in episode.turns[0].sent
    assert [turn.sent.count("[tools]") for turn in episode.turns] == [1, 0, 0, 0]
    assert episode.turns[1].sent.count("[tool]") == 2
    first, second, third, fourth = (messages for messages, _ in requests)
    assert second[: len(first)] == first and third[: len(second)] == second and fourth[: len(third)] == third
    output = second[len(first) :]
    assert [tool_call["role"] for tool_call in output] == ["assistant", "tool", "tool"]
    assert [tool_call["id"] for tool_call in output[0]["tool_calls"]] == ["call_1", "call_2"]
    assert [tool_call["tool_call_id"] for tool_call in output[1:]] == ["call_1", "call_2"]
    assert "You stand at" in output[1]["content"] and "Error: argument 'command'" in output[2]["content"]
    assert [tool_call["role"] for tool_call in fourth[len(third) :]] == ["assistant", "user"]
    assert "There is no tool call in this" in fourth[-1]["content"]


@pytest.mark.parametrize("history", ["full", 1])
@pytest.mark.parametrize(
    "answer",
    [
        message(call("[" * 30_000)),
        message(call('{"command": NaN}')),
        message(call("", name="fly" * 1000)),
        message(call('{}, "name": "act"')),
        message(*(call(LEFT, number=number) for number in range(MOST_CALLS + 5))),
        message(call('{"command": "\\ud800"}')),
    ],
    ids=range(6),
)
def test_hostile_calls_are_penalised_turns(answer, history):
    episode, requests = played(history, answer, answer, turns=2)
    assert [turn.invalid for turn in episode.turns] == ["not parsed", "not parsed"]
    assert len(requests[1][0]) == (3 if history == "full" else 1)
