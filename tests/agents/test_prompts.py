"""Prompts are files: what the shipped ones write, what is refused, and what a run records of them."""

import hashlib
import itertools
import json

import pytest

from gagpo.agents.preview import make_with_expert
from gagpo.agents.prompts import Prompt, find_prompt, shipped_prompts
from gagpo.agents.setup import make_context
from gagpo.base.core_schema import parse_yaml
from gagpo.base.errors import InvalidArgument
from gagpo.data import Turn
from gagpo.settings import dump, load, parse
from tests.rejections import rejects

SEEN = ["You stand at 3.\nGo to door 1.", "  {x} spaced \n", "Nothing\n\nhappens.", "You stand at 1."]
SAID = ["left", "go <b>", "query: a\nb"]
TURNS = [Turn(seen, said, said) for seen, said in zip(SEEN, SAID, strict=False)]
ASK = (
    "First reason step by step about the situation inside <think> </think>. Then give exactly one action inside "
    "<action> </action>."
)


def written(name, instructions, actions):
    """Everything that a prompt writes, by what it is."""
    prompt = find_prompt(name)
    key = f"{name}|{instructions}|{'a' if actions else ''}"
    results = {f"{key}|first": prompt.first_text(instructions, SEEN[0], actions)}
    results[f"{key}|turn"] = prompt.turn_text(instructions, TURNS[:1], SEEN[1], actions)
    for width in (0, 1, 3, 5):
        for done in (0, 1, 3):
            text = prompt.window_text(instructions, TURNS[:done], SEEN[done], actions, width)
            results[f"{key}|window{width},{done}"] = text
    return results


def digest_of(*names):
    """How many texts the prompts write, and their digest."""
    results = {}
    for name in names:
        for instructions in ("", "Walk {a}."):
            for actions in ((), ("left", "right {0}")):
                results |= written(name, instructions, actions)
    return results, hashlib.sha256(json.dumps(results, sort_keys=True).encode()).hexdigest()


def test_plain_writes_the_same_bytes_as_ever():
    """The shipped models were trained with it: recorded results stay comparable."""
    results, digest = digest_of("plain")
    assert len(results) == 56
    assert digest == "3c92843108d0a32fe5568133bb1a2416a4b1ab5832b8bcfca5be5dfd0c5dbc8b"


def test_the_other_prompts_change_only_on_purpose():
    results, digest = digest_of("plain", "tags", "whole", "tools", "action")
    assert results["tags|Walk {a}.|a|first"] == (
        f"Walk {{a}}.\n\nYou stand at 3.\nGo to door 1.\nAdmissible actions: left, right {{0}}.\n\n{ASK}"
    )
    assert results["tools|Walk {a}.||window1,3"] == (
        "Walk {a}.\n\nYou stand at 3.\nGo to door 1.\n\nThe latest observations and calls, of 3:\n"
        "Nothing\n\nhappens.\n> query: a\nb\nYou stand at 1."
    )
    assert results["tags|Walk {a}.||window1,0"] == results["tags|Walk {a}.||first"]
    assert results["tags|Walk {a}.||window1,1"] == (
        "Walk {a}.\n\nActions so far: 1. The latest observations and actions:\nYou stand at 3.\nGo to door 1.\n"
        f"> left\n\nNow you see:\n  {{x}} spaced \n\n\n{ASK}"
    )
    assert digest == "14c76334cc1bfe52870f470715aab8547d01c4067a740f042cdf5f71719ef7a7"


# Empty sections -------------------------------------------------------------------------------------------------------

ENVIRONMENTS = {
    "gagpo/ALFWorld-v0": {"counts": {"train": 2, "valid_seen": 0, "valid_unseen": 0}},
    "gagpo/WebShop-v0": {"products": 50},
    "gagpo/Math-v0": {"size": 20, "levels": 4},
    "gagpo/SQL-v0": {"size": 4, "test_size": 4},
    "gagpo/Storeroom-v0": {},
    "gagpo.envs.testing:gagpo-test/Corridor-v0": {},
    "reasoning_gym:leg_counting": {"tasks": {"train": "0-9"}},
}
PREVIEWED = 4  # turns


def episode_of(name, kwargs):
    """The instructions of an environment, and the observation and admissible actions of the first turns."""
    if name.startswith("reasoning_gym"):
        pytest.importorskip("reasoning_gym")
    env = make_with_expert(name, kwargs)
    try:
        observation, info = env.reset(seed=0, options={"task": env.tasks(env.splits[0]).ids[0]})
        turns, output = [], [(observation, info.get("admissible_actions") or ())]
        for number in range(PREVIEWED - 1):
            # An invalid action keeps the episode alive, and is a case of its own.
            action = info.get("expert_action") if number == 1 else "nonsense"
            turns.append(Turn(observation, action or "", action or ""))
            observation, _, terminated, truncated, info = env.step(action or "")
            output.append((observation, info.get("admissible_actions") or ()))
            if terminated or truncated:
                break
        return str(env.instructions), turns, output
    finally:
        env.close()


def empty_section(text, observations=()):
    """The first line, outside the observations, that ends with a colon and has nothing below it; '' without one."""
    exempt = {line for observation in observations for line in observation.splitlines()}
    lines = text.splitlines()
    for line, following in itertools.zip_longest(lines, lines[1:], fillvalue=""):
        if line.endswith(":") and not following.strip() and line not in exempt:
            return line
    return ""


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_prompt_has_an_empty_section_in_any_environment(name, tmp_path, monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path))
    instructions, turns, output = episode_of(name, ENVIRONMENTS[name])
    observations = [observation for observation, _ in output]
    has_blank_lines = any("\n\n\n" in text or text.endswith("\n") for text in observations)
    for label in shipped_prompts():
        prompt = find_prompt(label)
        for done, (observation, actions) in enumerate(output):
            for listed in ((), actions):
                texts = [
                    prompt.window_text(instructions, turns[:done], observation, listed, width) for width in range(4)
                ]
                if done:
                    texts.append(prompt.turn_text(instructions, turns[:done], observation, listed))
                else:
                    texts.append(prompt.first_text(instructions, observation, listed))
                for text in texts:
                    assert not empty_section(text, [instructions, *observations]), (label, done, text)
                    assert observation.strip() in text, (label, done)
                    assert has_blank_lines or "\n\n\n" not in text, (label, done, text)


def test_the_check_of_empty_sections_finds_one():
    assert empty_section("Your task:\n\n\nYou took 0. Latest:\na") == "Your task:"
    assert empty_section("Your task:\na\n\nYou took 3. Latest:\n") == "You took 3. Latest:"
    assert empty_section("Your task:\na\n\nYou took 3. Latest:\nb") == ""
    assert empty_section("A sign:\n\nb", ["A sign:\n\nb"]) == ""


def test_thoughts_are_asked_for_by_name():
    asking = {name for name in shipped_prompts() if find_prompt(name).asks_for_thoughts}
    assert asking == {"tags", "think-act"}


def test_a_prompt_needs_no_code(tiny):
    """System message, example and history are wording of a file."""
    context = make_context(tiny[1], None, prompt="think-act", history=2)
    text = tiny[1].decode(context.prompt(TURNS, SEEN[3]))
    assert text.startswith("<|system|>You are an agent") and "</action><|end|><|user|>Your task and the start: " in text
    assert 'Step 3: you saw "Nothing\n\nhappens." and did "query: a\nb".\nThis is step 4.' in text
    assert context.turn(context.response("<think>so</think><action>left</action>")).action == "left"
    tiny[1].chat_template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}<|assistant|>"
    )
    text = tiny[1].decode(make_context(tiny[1], None, prompt="think-act").prompt([], SEEN[0]))
    assert text.startswith("<|user|>You are an agent") and text.count("<|user|>") == 2


WRONG = {
    "first: '{{ observaton }}'": "first: unknown field 'observaton'; nearest: observation",
    "window: '{{ turns }}'": "window: does not show observation; write {{ observation }}",
    "turn: '{{ observation }}{% for t in turns %}{% endfor %}'": "turn: unknown field 'turns'; nearest: actions, task",
    "first: '{{ observation'": "first: line 1: unexpected end of template",
    "window: '{{ observation }}{{ turns[0].obs }}'": "window: 'dict object' has no attribute 'obs'",
    "first: '{{ observation.__class__ }}'": "access to attribute '__class__' of 'str' object is unsafe",
    "first: '{{ observation }}{{ ''x'' * 10000000000 }}'": "first: * is for numbers",
    "first: '{% for i in range(99999) %}{{ observation }}12345678901{% endfor %}'": "more than 1,000,000 characters",
    "frist: a": "mine.yaml: unknown option 'frist'; nearest: first",
    "action: tag": "action must be line, whole, tools, {tag: NAME} or {json: KEY}, got 'tag'",
    "action: {tag: think}": "action: the tag must be a name such as action, and not think",
    "examples: [{role: user, content: a}]": "must alternate, and end with assistant",
    "examples: [{role: system, content: a}]": "examples.0.role must be 'user' or 'assistant'",
    "stop: ['']": "stop.0: String should have at least 1 character",
    "- a": "must hold keys and values: name, system, first",
    "a: b: c": "is not a YAML file: line 1",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_errors_name_file_key_and_remedy(text, tmp_path):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(InvalidArgument) as error:
        find_prompt(str(tmp_path / "mine.yaml"))
    assert "mine" in str(error.value) and WRONG[text] in str(error.value) and "\n" not in str(error.value)
    with rejects(InvalidArgument, "tagz", "YAML", advice="action, plain, tags"):
        find_prompt("tagz")


def test_a_run_records_the_content_and_needs_no_file(tmp_path, tiny):
    path = tmp_path / "mine.yaml"
    path.write_text(shipped_prompts()["tags"].read_text())
    settings = load("alfworld-quickstart", [f"context.prompt={path}"])
    path.write_text("first: 'Look: {{ observation }}'\naction: {json: action}\n")
    again = parse(parse_yaml(dump(settings)), "config.yaml")
    assert again == settings and again.context.prompt.kind == "tag"
    changed = load("alfworld-quickstart", [f"context.prompt={path}"])
    labels = [make_context(tiny[1], None, **dict(item.context)).conditions["prompt"] for item in (again, changed)]
    assert labels[0] != labels[1] and all(label.startswith("mine ") for label in labels)
    assert changed.context.prompt.turn == Prompt.model_fields["turn"].default
