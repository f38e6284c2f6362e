"""The protocols of OpenAI and Anthropic, asked with OpenAI's own client and as bytes."""

import json
import threading

import pytest
from openai import BadRequestError, OpenAI

from gagpo.envs.gateway.messages import Completion
from tests.envs.program.programs import PATIENCE, ask, key_of, running, wait

SAID = [{"role": "user", "content": "one"}]
PRICE = {"name": "price", "description": "Costs.", "parameters": {"type": "object", "properties": {}}}
CALL = {"id": "abc000001", "type": "function", "function": {"name": "price", "arguments": {"item": "lamp"}}}
CALLED = Completion("", [CALL], "tool_calls", (7, 3)).action
SLEEPING = "time.sleep(1000)\n"


class Model:
    """Answers the requests of a test with ``actions``, the pool being driven in a thread; keeps what was asked."""

    def __init__(self, folder, *actions):
        self.actions, self.asked, self.entered = actions, [], running(folder, SLEEPING)

    def __enter__(self):
        self.pool = self.entered.__enter__()
        self.pool.reset(0, "a", 1)
        self.pool.flush()
        while not self.pool._programs:
            pass
        self.thread = threading.Thread(target=self._answer)
        self.thread.start()
        self.client = OpenAI(base_url=f"{self.pool._server.address}/v1", api_key=key_of(self.pool), max_retries=0)
        return self

    def _answer(self):
        for action in self.actions:
            self.asked.append(wait(self.pool).info["request"])
            self.pool.step(0, action)
            self.pool.flush()

    def __exit__(self, *error):
        self.client.close()
        self.thread.join(PATIENCE)
        self.entered.__exit__(*error)


def test_chat_completions_as_openais_client_reads_them(tmp_path):
    plain = Completion("hi", usage=(5, 2), logprobs=[("h", -0.5), ("\ufffd", -0.25)]).action
    with Model(tmp_path, plain, plain, CALLED, CALLED, Completion("cut", finish="length").action) as model:
        create = model.client.chat.completions.create
        messages = create(model="any", messages=SAID, logprobs=True, stop="x", seed=3, temperature=0.2)
        assert (messages.choices[0].message.content, messages.choices[0].finish_reason, messages.model) == (
            "hi",
            "stop",
            "any",
        )
        assert [chunk.logprob for chunk in messages.choices[0].logprobs.content] == [-0.5, -0.25]
        assert [chunk.bytes for chunk in messages.choices[0].logprobs.content] == [[104], None]  # a part of a character
        assert messages.usage.prompt_tokens == 5 and messages.usage.total_tokens == 7
        chunks = list(create(model="any", messages=SAID, stream=True, stream_options={"include_usage": True}))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hi"
        assert chunks[-1].usage.completion_tokens == 2 and chunks[-2].choices[0].finish_reason == "stop"
        tools = [{"type": "function", "function": PRICE}]
        called = create(model="any", messages=SAID, tools=tools).choices[0]
        assert called.finish_reason == "tool_calls" and called.message.content is None
        assert json.loads(called.message.tool_calls[0].function.arguments) == {"item": "lamp"}
        with model.client.chat.completions.stream(model="any", messages=SAID, tools=tools) as stream:
            final = stream.get_final_completion().choices[0]
        assert final.message.tool_calls[0].function.name == "price" and final.finish_reason == "tool_calls"
        assert create(model="any", messages=SAID).choices[0].finish_reason == "length"
        assert model.asked[0]["stop"] == ["x"] and model.asked[2]["tools"][0]["function"]["name"] == "price"
        with pytest.raises(BadRequestError, match=r"top_p=0[.]5 is not supported"):
            create(model="any", messages=SAID, top_p=0.5)
        assert [chunk.id for chunk in model.client.models.list()] == ["gagpo"]


def test_responses_as_openais_client_reads_them(tmp_path):
    with Model(tmp_path, Completion("hi").action, CALLED, Completion("done").action, CALLED) as model:
        create = model.client.responses.create
        first = create(model="any", input="one", instructions="Be brief.")
        assert first.output_text == "hi" and first.status == "completed"
        tools = [{"type": "function", **PRICE}]
        second = create(model="any", input=SAID, tools=tools)
        (call,) = second.output
        assert (call.name, json.loads(call.arguments)) == ("price", {"item": "lamp"})
        items = [*SAID, call.model_dump(), {"type": "function_call_output", "call_id": call.call_id, "output": "5"}]
        with model.client.responses.stream(model="any", input=items, tools=tools) as stream:
            type_names = [event.type for event in stream]
            assert stream.get_final_response().output_text == "done"
        assert type_names[0] == "response.created" and type_names[-1] == "response.completed"
        with model.client.responses.stream(model="any", input=SAID, tools=tools) as stream:
            assert stream.get_final_response().output[0].name == "price"
        assert model.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}
        third = model.asked[2]
        assert (
            third["extends"] == 1 and third["messages"][0]["role"] == "tool" and third["messages"][0]["content"] == "5"
        )
        with pytest.raises(BadRequestError, match="previous_response_id"):
            create(model="any", input="two", previous_response_id="resp")


def test_anthropics_messages(tmp_path):
    with Model(tmp_path, CALLED, Completion("done", usage=(9, 4)).action, Completion("s").action, CALLED) as model:
        key, tool = key_of(model.pool), {"name": "price", "input_schema": PRICE["parameters"]}
        body = {"model": "any", "max_tokens": 9, "system": [{"type": "text", "text": "Be brief."}], "tools": [tool]}
        _, first = ask(model.pool, "/v1/messages", {**body, "messages": SAID}, key)
        assert first["stop_reason"] == "tool_use"
        assert first["content"] == [{"type": "tool_use", "id": CALL["id"], "name": "price", "input": {"item": "lamp"}}]
        result = [{"type": "tool_result", "tool_use_id": CALL["id"], "content": "5"}, {"type": "text", "text": "go on"}]
        talk = [*SAID, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": result}]
        _, second = ask(model.pool, "/v1/messages", {**body, "messages": talk}, key)
        assert second["content"] == [{"type": "text", "text": "done"}] and second["usage"]["output_tokens"] == 4
        assert model.asked[1]["extends"] == 0
        assert [message["role"] for message in model.asked[1]["messages"]] == ["tool", "user"]
        for type_names in ("text_delta", "input_json_delta"):
            text = stream(model.pool, {**body, "messages": SAID, "stream": True}, key)
            assert text.startswith("event: message_start") and type_names in text and "event: message_stop" in text
        for wrong in ({"top_k": 5}, {"thinking": {"type": "enabled"}}):
            assert ask(model.pool, "/v1/messages", {**body, **wrong, "messages": SAID}, key)[0] == 400


def stream(pool, body, key):
    import urllib.request

    headers = {"x-api-key": key, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{pool._server.address}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        return answer.read().decode()
