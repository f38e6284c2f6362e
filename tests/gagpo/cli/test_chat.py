"""A trained model answers in the terminal, at a server, in training and in transformers with the same tokens."""

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager

import openai
import pytest

from gagpo.base.interpreter import module_command
from gagpo.envs.gateway.messages import ChatRequest, GatewayError
from gagpo.eval.chat import chat_source
from gagpo.eval.models import request_of
from gagpo.interop.chat_model import ChatModel
from gagpo.training.export import export
from tests.raw_requests import asked
from tests.rejections import rejects

QUESTIONS = ("You see a wall. What is left?", "And right of it?")


@contextmanager
def chatting(model, seed=0, **options):
    source = chat_source(request_of(str(model), **options))
    chat = ChatModel(source.name, source.agent, seed)
    try:
        yield chat
    finally:
        chat.close()


def talked(chat, questions=QUESTIONS, **options):
    """The conversation after these questions."""
    messages = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        messages.append(chat.ask(ChatRequest.of({"messages": messages, **options})).result().message)
    return messages


@contextmanager
def serving(*arguments):
    """``gagpo serve`` in a process of its own; gives its address."""
    command = module_command("gagpo", "serve", *map(str, arguments), "--port", "0")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    try:
        line = process.stdout.readline()
        yield re.search(r"http://\S+", line)[0]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130, -signal.SIGINT)


@pytest.fixture(scope="module")
def full(finished, tmp_path_factory):
    """The finished run as if it had been trained on whole conversations with instructions."""
    import shutil

    import yaml

    run = tmp_path_factory.mktemp("full") / "run"
    shutil.copytree(finished, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["context"], values["rollout"]["max_tokens"] = {"prompt": "tags"}, 8
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    return run


def in_training(run, questions):
    """Prompts and greedy answers of training's agent for an episode with these observations."""
    from gagpo.agents.agent import EpisodeState
    from gagpo.agents.engines.base import Sampling
    from gagpo.agents.setup import language_agent as build
    from gagpo.agents.setup import make_engine, make_env
    from gagpo.data import Episode
    from gagpo.model.loading import load_model, load_tokenizer

    folder = str(run / "checkpoints" / "iteration-000002" / "model")
    model = load_model(folder)
    engine = make_engine("transformers", model, load_tokenizer(folder))
    env = make_env("gagpo.envs.testing:gagpo-test/Corridor-v0")
    agent = build(engine, env, Sampling(0.0, 8), prompt="tags")
    state = EpisodeState(0, Episode("1"))
    for question in questions:
        state.observation = question
        (turn,) = agent.decide([state])
        state.episode.turns.append(turn.with_observation(question, None))
    engine.close()
    return state.episode.turns


def test_training_chat_export_and_transformers_answer_with_equal_tokens(full, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    turns = in_training(full, QUESTIONS)
    out = export(str(full), tmp_path / "out")
    for model, options in ((full, {}), (out, {"max_tokens": 8})):
        with chatting(model, temperature=0.0, **options) as chat:
            messages = talked(chat)
            output = chat._history.turns
        assert [turn.prompt_ids.tolist() for turn in output] == [turn.prompt_ids.tolist() for turn in turns]
        assert [turn.response_ids.tolist() for turn in output] == [turn.response_ids.tolist() for turn in turns]
        answers = [message["content"] for message in messages if message["role"] == "assistant"]
        assert answers == [turn.response for turn in turns]
    elsewhere, tokenizer = AutoModelForCausalLM.from_pretrained(out), AutoTokenizer.from_pretrained(out)
    ids = tokenizer.apply_chat_template(messages[:1], add_generation_prompt=True, return_tensors="pt")
    ids = ids["input_ids"] if hasattr(ids, "keys") else ids
    assert ids[0].tolist() == turns[0].prompt_ids.tolist()
    written = elsewhere.generate(ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    assert written.tolist() == turns[0].response_ids.tolist()


@pytest.mark.slow
def test_a_server_answers_as_the_chat(full):
    with chatting(full, temperature=0.0) as chat:
        messages = talked(chat)
    with serving(full, "--temperature", "0") as url:
        client = openai.OpenAI(base_url=url, api_key="any")
        served = []
        for question in QUESTIONS:
            served.append({"role": "user", "content": question})
            answer = client.chat.completions.create(model="any", messages=served, logprobs=True).choices[0]
            served.append({"role": "assistant", "content": answer.message.content})
            assert answer.finish_reason in ("stop", "length") and answer.logprobs.content
    assert served == messages


def test_requests_are_answered_together_and_by_their_seeds(full):
    with chatting(full, seed=None) as chat:
        bodies = [
            {"messages": [{"role": "user", "content": QUESTIONS[0]}], "seed": n, "temperature": 2} for n in (1, 2)
        ]
        futures = [chat.ask(ChatRequest.of(body)) for body in bodies * 8]
        texts = [future.result().content for future in futures]
        assert texts == texts[:2] * 8 and texts[0] != texts[1]
        for name, value in (("temperature", "hot"), ("temperature", -1), ("seed", 1.5), ("seed", True)):
            with rejects(GatewayError, name):
                chat.ask(ChatRequest.of({**bodies[0], name: value})).result()
        with rejects(GatewayError, "1024 tokens"):
            chat.ask(ChatRequest.of({"messages": [{"role": "user", "content": "left " * 5000}]})).result()
        cancelled = chat.ask(ChatRequest.of(bodies[0]))
        cancelled.cancel()
        assert talked(chat)[-1]["role"] == "assistant"
        late = chat
    with rejects(GatewayError, "closed"):
        late.ask(ChatRequest.of(bodies[0])).result(timeout=5)


@pytest.mark.slow
def test_a_server_with_a_key_and_hostile_requests(finished):
    with serving(finished, "--api-key", "secret") as address:
        url = address.removesuffix("/v1")
        assert asked(url, "GET", "/v1/models")[0] == 401
        assert asked(url, "GET", "/v1/models", authorization="Bearer wrong")[0] == 401
        status, body = asked(url, "GET", "/v1/models", authorization="Bearer secret")
        assert status == 200 and str(finished).encode() in body
        assert asked(url, "POST", "/reward", b'{"reward": 1}', authorization="Bearer secret")[0] == 404
        assert asked(url, "GET", "/v1/models", host="evil.example", authorization="Bearer secret")[0] == 403
        client = openai.OpenAI(base_url=address, api_key="secret")
        with pytest.raises(openai.BadRequestError, match="temperature must be a number"):
            client.chat.completions.create(model="", messages=[{"role": "user", "content": "a"}], temperature=-1)
        stream = client.chat.completions.create(model="", messages=[{"role": "user", "content": "a"}], stream=True)
        assert [chunk.choices[0].finish_reason for chunk in stream][-1] in ("stop", "length")


@pytest.mark.slow
def test_chat_reads_a_pipe_and_ends_with_it(finished):
    command = module_command("gagpo", "chat", str(finished), "--temperature", "0", "--json")
    done = subprocess.run(command, input="left\n\nright\n", capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert [message["role"] for message in record["messages"]] == ["user", "assistant"] * 2
    assert f"{finished}, iteration 2" in record["model"] and "> right" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["serve", "gagpo/ALFWorld-v0"], "gagpo/ALFWorld-v0: is an environment"),
        (["serve", "walk:Walk-v0"], "is an environment"),
        (["serve", "gagpo/WebShop-v0", "-k", "products=200"], "is for models, not environments"),
        (["chat", "random"], "random has no weights here"),
        (["chat", "openai:gpt"], "openai:gpt has no weights here"),
        (["chat", "nowhere/at-all/of-it"], "nowhere"),
    ],
)
def test_what_cannot_be_talked_to_is_one_line(inside, arguments, message):
    done = inside(*arguments)
    assert done.returncode == 2 and message in done.stderr.replace("\n", " ")


def test_a_server_that_others_reach_needs_a_key(inside, finished):
    done = inside("serve", finished, "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 2 and "set a key with --api-key" in done.stderr


def test_a_strangers_run_is_not_imported(inside, finished, tmp_path, monkeypatch):
    import shutil

    import yaml

    (tmp_path / "strange.py").write_text("import pathlib\npathlib.Path(__file__).with_name('imported').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    values = yaml.safe_load((run / "config.yaml").read_text())
    values["environment"]["id"] = "strange:Strange-v0"
    (run / "config.yaml").write_text(yaml.safe_dump(values))
    for command in ("chat", "serve"):
        done = inside(command, run)
        assert done.returncode == 2 and "add --trust-remote-code" in done.stderr
    assert not (tmp_path / "imported").exists()
