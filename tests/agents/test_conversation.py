"""Conversations of tool calls: what templates render, what is sampled and trained, and how episodes are played."""

import importlib.resources
import re
from dataclasses import replace
from itertools import pairwise
from zlib import crc32

import numpy as np
import pytest
import torch

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.agent import LanguageAgent
from gagpo.agents.call_formats import FORMATS
from gagpo.agents.context import Context, Interface
from gagpo.agents.engines.base import Response, Sampling
from gagpo.agents.engines.transformers import TransformersEngine
from gagpo.agents.prompts import find_prompt
from gagpo.agents.rollout import group_jobs, rollout
from gagpo.agents.setup import language_agent, make_env
from gagpo.base.errors import InvalidArgument
from gagpo.collecting.packing import packed, unpacked
from gagpo.data import Turn, build_rows, episode_from_record, episode_record, read_episodes, write_episodes
from gagpo.envs.pool import WorkerPool
from gagpo.sft.small_model import CHAT_TEMPLATE, ModelShape, build
from tests.conftest import TEXTS
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"

MISTRAL = (
    "{% set asked = messages|selectattr('role', 'equalto', 'user')|list %}{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}{% if tools and m == asked[-1] %}[AVAILABLE_TOOLS] {{ tools|tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}[INST] {{ m.content }}[/INST]{% elif m.role == 'tool' %}{% if m.tool_call_id|length != 9 %}"
    "{{ raise_exception('nine characters') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ m.content|tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments|tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
"""A stand-in with what sets the family apart: tools before the last user's words, ids of nine characters."""

MARKS = ["<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"]
MARKS += ["[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "</s>"]
FORMS = {
    "qwen2_5": ("hermes", "<|im_end|>"),
    "qwen3": ("hermes", "<|im_end|>"),
    "qwen3_instruct_2507": ("hermes", "<|im_end|>"),
    "llama3_1": ("llama", "<|eot_id|>"),
    "llama3_2": ("llama", "<|eot_id|>"),
    "mistral": ("mistral", "</s>"),
    "small": ("hermes", "<|end|>"),
}


def template(name):
    if name in ("mistral", "small"):
        return {"mistral": MISTRAL, "small": CHAT_TEMPLATE}[name]
    pytest.importorskip("trl", reason="the families' own templates are taken from where TRL keeps them")
    return (importlib.resources.files("trl") / "chat_templates" / f"{name}.jinja").read_text()


def dressed(tokenizer, name):
    tokenizer.add_special_tokens({"additional_special_tokens": MARKS})
    tokenizer.eos_token, tokenizer.bos_token = FORMS[name][1], "<|pad|>"
    tokenizer.chat_template = template(name)
    return tokenizer


@pytest.fixture
def small():
    settings = ModelShape(layers=2, width=32, heads=2, feed_forward=48, vocabulary=500, context=8192)
    model, tokenizer = build(settings, TEXTS, seed=0)
    return model.eval(), tokenizer


@pytest.mark.parametrize("name", FORMS)
def test_the_format_is_found_in_the_template(small, name):
    context = Context(dressed(small[1], name), find_prompt("tools"))
    assert context.toolbox.form.name == FORMS[name][0]
    assert context.conditions["calls"] == FORMS[name][0] and len(context.conditions["tools"]) == 16
    assert Context(small[1], find_prompt("tools"), calls="llama").toolbox.form.name == "llama"


def test_a_template_with_an_unknown_format_of_calls_is_refused_with_advice(small):
    tokenizer = small[1]
    tokenizer.chat_template = CHAT_TEMPLATE.replace("<tool_call>", "<call>")
    with rejects(InvalidArgument, "hermes, llama, mistral", key="context.calls", advice="context.calls"):
        Context(tokenizer, find_prompt("tools"))
    assert Context(tokenizer, find_prompt("tools"), calls="hermes").toolbox.form.name == "hermes"


MOVES = [["left"], ["left", "right"], ["right"]]
THOUGHT = "<think>\nhm\n</think>\n\n"


@pytest.mark.parametrize("thinking", [False, True], ids=["bare", "thinking"])
@pytest.mark.parametrize("name", FORMS)
def test_every_prompt_is_what_the_template_renders(small, name, thinking):
    """The first user's words are the last: so Qwen3's template keeps all thoughts, as the conversation does."""
    tokenizer = dressed(small[1], name)
    context = Context(tokenizer, find_prompt("tools"), Interface("Walk."))
    if thinking and name != "qwen3":
        pytest.skip("its template knows no thoughts")
    begun = THOUGHT if thinking else ""
    turns, chat = [], [{"role": "user", "content": "Walk.\n\nYou stand at 3."}]
    moves = [m[:1] for m in MOVES] if name.startswith("llama3") else MOVES  # whose template shows one call at a time
    for number, messages in enumerate(moves):
        turn = context.turn(context.response(begun + context.toolbox.write(messages)))
        assert (turn.invalid, [call.action for call in turn.calls]) == ("", messages)
        prompt_ids = context.prompt(turns, turns[-1].observation if turns else "You stand at 3.")
        turn = replace(turn, prompt_ids=prompt_ids, response_ids=context.response(turn.response))
        for i in range(len(messages)):
            turn = turn.with_answer(f"Answer {number}.{i}")
        turn = turn.with_observation(turn.answers, None)
        turns.append(turn)
        requests = [
            {"id": call.id, "type": "function", "function": {"name": "act", "arguments": {"command": call.action}}}
            for call in turn.calls
        ]
        chat += [{"role": "assistant", "content": "", "tool_calls": requests}]
        if thinking:
            chat[-1]["reasoning_content"] = "hm"
        chat += [
            {"role": "tool", "content": text, "tool_call_id": call.id}
            for text, call in zip(turn.answers.split("\n"), turn.calls, strict=True)
        ]
    last = context.prompt(turns, turns[-1].observation)
    full = {"tools": context.toolbox.specs, "tokenize": False, "add_generation_prompt": True}
    assert tokenizer.decode(last) == tokenizer.apply_chat_template(chat, **full, **context._variables)
    for before, after in pairwise([*(turn.prompt_ids for turn in turns), last]):
        assert after[: len(before)].tolist() == before.tolist()


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "mistral"])
def test_sampler_and_trainer_agree_token_for_token(small, name):
    model, tokenizer = small
    dressed(tokenizer, name)
    model.resize_token_embeddings(len(tokenizer))
    engine = TransformersEngine(model, tokenizer)
    agent = language_agent(engine, make_env(CORRIDOR), Sampling(1.0, 6), prompt="tools")
    with WorkerPool(CORRIDOR, {"max_turns": 4}, workers=0) as pool:
        episodes, _ = rollout(agent, pool, group_jobs(["door-01", "door-05"], 2, seed=3))
    assert {turn.invalid for episode in episodes for turn in episode.turns} <= {"not parsed", "cut off"}
    model.set_attn_implementation("eager")
    for episode in episodes:
        (row,) = build_rows([episode])  # the template extends, so does the row
        sampled = np.concatenate([turn.response_ids for turn in episode.turns])
        assert row.ids[row.position_K].tolist() == sampled.tolist()
        with torch.no_grad():
            logprobs = model(torch.tensor(row.ids[None].astype(np.int64))).logits[0].log_softmax(-1)
        trained = logprobs[row.position_K - 1, row.ids[row.position_K].astype(np.int64)]
        assert np.allclose(trained.numpy(), np.concatenate([turn.logprobs for turn in episode.turns]), atol=1e-4)


class WalkingEngine:
    """Goes where the last observation of the prompt says, ``at once`` so many steps, in a phrasing of its own."""

    dtype, max_length, shares_weights = "float32", 100_000, True

    def __init__(self, tokenizer, at_once=1):
        self.tokenizer, self.at_once = tokenizer, at_once

    def generate(self, requests, sampling):
        return [self._respond(self.tokenizer.decode(request.prompt_ids), request.seed) for request in requests]

    def _respond(self, prompt, seed):
        location, door = map(int, re.findall(r"stand at (\d+). Go to door (\d+)", prompt)[-1])
        move = "left" if location > door else "right"
        lost = crc32(f"{seed}".encode()) % 8 == 0  # now and then it says nothing that can be done
        turn = Turn("", "", move) if not lost else Turn("", "", "jump")
        text = (
            self.action_format.write(turn)
            if self.at_once == 1
            else self.action_format.toolbox.write([move] * self.at_once)
        )
        return Response(self.context.response(text), np.zeros(1, np.float32), True)

    def release(self, session):
        pass


def walk(tokenizer, prompt, at_once=1, history="full"):
    engine = WalkingEngine(tokenizer, at_once)
    agent = language_agent(engine, make_env(CORRIDOR), Sampling(max_tokens=64), prompt=prompt, history=history)
    engine.context, engine.action_format = agent.context, agent.context.action_format
    ids = [task for split in ("train", "test") for task in make_env(CORRIDOR).tasks(split).ids]
    with WorkerPool(CORRIDOR, {"max_turns": 24}, workers=0) as pool:
        return rollout(agent, pool, group_jobs(ids, 2, seed=5))[0]


def seen(episodes):
    return [[(t.observation, t.action, t.reward, t.invalid, t.state) for t in e.turns] + [e.success] for e in episodes]


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "mistral", "small"])
def test_an_agent_plays_the_same_with_lines_and_with_calls(small, name):
    lines = walk(small[1], "plain")
    called = walk(dressed(small[1], name), "tools")
    assert len(lines) == 24 and sum(episode.success for episode in lines) >= 18
    assert seen(called) == seen(lines)
    assert seen(walk(small[1], "tools", history=1)) == seen(lines)


def test_several_calls_are_answered_in_order_and_the_episode_may_end_between(small):
    episodes = walk(small[1], "tools", at_once=2)
    assert all(episode.success for episode in episodes)
    for episode in episodes:
        for turn, after in pairwise(episode.turns):
            assert [call.action for call in turn.calls] == turn.action.split("\n") and len(turn.calls) == 2
            assert [call.answer for call in turn.calls] == after.observation.split("\n")
        assert episode.reward == 1.0 and episode.end_observation == f"{episode.end_observation.splitlines()[0]}" + (
            "" if episode.turns[-1].pending_action else f"\n{episode.turns[-1].calls[-1].answer}"
        )
    assert any(episode.turns[-1].pending_action for episode in episodes), "some ended at the first of two"


def test_files_and_ranks_keep_the_calls(small, tmp_path):
    episodes = walk(small[1], "tools", at_once=2)[:4]
    write_episodes(tmp_path / "e.jsonl", episodes)
    records = list(read_episodes(tmp_path / "e.jsonl"))
    assert records[0]["turns"][0]["calls"][1] == {
        "action": "left",
        "id": "call00001",
        "answer": episodes[0].turns[0].calls[1].answer,
    }
    assert [episode_record(episode_from_record(record)) for record in records] == records
    (again, *_), _ = unpacked(packed(episodes, {}))
    assert again.turns[0].calls == episodes[0].turns[0].calls
    records[0]["turns"][0]["calls"] = [{"action": 3}]
    with rejects(InvalidArgument, key="calls", where="turn 0"):
        episode_from_record(records[0])


class Scripted:
    dtype, max_length, shares_weights = "float32", 100_000, True

    def __init__(self, tokenizer, *texts):
        self.tokenizer, self.texts = tokenizer, list(texts)

    def generate(self, requests, sampling):
        ids = np.asarray([*self.tokenizer.encode(self.texts.pop(0)), self.tokenizer.eos_token_id], np.int32)
        return [Response(ids, np.zeros(len(ids), np.float32), True) for _ in requests]

    def release(self, session):
        pass


def test_a_wrong_call_is_a_penalised_turn_that_says_what_was_wrong(small):
    good, bad = FORMATS["hermes"].example.replace("...", "act", 1).replace("{...}", '{"command": "left"}'), "Left."
    broken = good.replace('"command": "left"', '"to": "left"')
    engine = Scripted(small[1], good, bad, broken, f"{good}\n{broken}\n{good}")
    agent = language_agent(engine, make_env(CORRIDOR), Sampling(max_tokens=64), prompt="tools")
    with WorkerPool(CORRIDOR, {"max_turns": 6}, workers=0) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["door-03"], 1, seed=0))
    assert [turn.invalid for turn in episode.turns] == ["", "not parsed", "not parsed", "not parsed"]
    assert [turn.action for turn in episode.turns] == ["left", "", "", "left\nleft"]
    observations = [turn.observation for turn in episode.turns] + [episode.end_observation]
    assert observations[2].startswith("There is no tool call in this.") and "You stand at" in observations[2]
    assert observations[3].startswith("Error: argument 'command' of act: Field required (and 1 more).")
    assert observations[4].count("You stand at") == 3 and observations[4].count("Error:") == 1
    assert episode.outcome == "truncated", "the environment counts calls, not turns"


def test_an_episode_restarts_if_its_environment_breaks_between_two_calls(small, tmp_path):
    call = '<tool_call>{"name": "act", "arguments": {"command": "WHAT"}}</tool_call>'
    twice = call.replace("WHAT", "walk") + call.replace("WHAT", "crash") + call.replace("WHAT", "walk")
    engine = Scripted(small[1], twice, twice, call.replace("WHAT", "end"))
    kwargs = {"marker": str(tmp_path / "once")}
    agent = language_agent(engine, make_env(FAULTY, kwargs), Sampling(max_tokens=64), prompt="tools")
    with WorkerPool(FAULTY, kwargs, workers=1) as pool:
        (episode,), _ = rollout(agent, pool, group_jobs(["quiet"], 1, seed=0))
    assert episode.success and episode.restarts == 1
    assert [[c.action for c in t.calls] for t in episode.turns] == [["walk", "crash", "walk"], ["end"]]


def test_a_special_token_may_begin_a_call(small):
    context = Context(dressed(small[1], "mistral"), find_prompt("tools"))
    ids = context.response(context.toolbox.write(["left"]))
    assert small[1].convert_tokens_to_ids("[TOOL_CALLS]") in ids.tolist()
    assert context.turn(ids).response.startswith("[TOOL_CALLS]") and context.turn(ids).action == "left"
    assert context.turn(ids[:-1], cut=True).action == "left"
    assert context.turn(ids[:4], cut=True).invalid == "cut off"
    assert isinstance(LanguageAgent(Scripted(small[1]), context, Sampling()).conditions, dict)
