"""Prompts are files: what the shipped ones write, what is refused, and what a run records of them."""

import hashlib
import json

import pytest

from gagpo.agents.prompts import Prompt, find_prompt, shipped_prompts
from gagpo.agents.setup import make_context
from gagpo.base.core_schema import parse_yaml
from gagpo.base.errors import InvalidArgument
from gagpo.data.episodes import Turn
from gagpo.settings import dump, load, parse

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
    found = {f"{key}|first": prompt.first_text(instructions, SEEN[0], actions)}
    found[f"{key}|turn"] = prompt.turn_text(instructions, TURNS[:1], SEEN[1], actions)
    for width in (0, 1, 3, 5):
        for done in (0, 1, 3):
            text = prompt.window_text(instructions, TURNS[:done], SEEN[done], actions, width)
            found[f"{key}|window{width},{done}"] = text
    return found


def test_the_shipped_prompts_write_the_same_bytes_as_ever():
    """The digest is of what the code wrote before prompts were files: recorded results stay comparable."""
    found = {}
    for name in ("plain", "tags", "whole", "tools"):
        for instructions in ("", "Walk {a}."):
            for actions in ((), ("left", "right {0}")):
                found |= written(name, instructions, actions)
    assert len(found) == 224
    assert found["tags|Walk {a}.|a|first"] == (
        f"Walk {{a}}.\n\nYou stand at 3.\nGo to door 1.\nAdmissible actions: left, right {{0}}.\n\n{ASK}"
    )
    assert found["tools|Walk {a}.||window1,3"] == (
        "Walk {a}.\n\nYou stand at 3.\nGo to door 1.\n\nThe latest observations and calls, of 3:\n"
        "Nothing\n\nhappens.\n> query: a\nb\nYou stand at 1."
    )
    digest = hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()
    assert digest == "70be4462c997cbcbd02c52f5be02a73c1d77d8f572931b1715f47d854d92bec1"


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
    "window: '{{ turns }}'": "window: does not show observation: write {{ observation }}",
    "turn: '{{ observation }}{% for t in turns %}{% endfor %}'": "turn: unknown field 'turns'; nearest: actions, task",
    "first: '{{ observation'": "first: line 1: unexpected end of template",
    "window: '{{ observation }}{{ turns[0].obs }}'": "window: 'dict object' has no attribute 'obs'",
    "first: '{{ observation.__class__ }}'": "access to attribute '__class__' of 'str' object is unsafe",
    "first: '{{ observation }}{{ ''x'' * 10000000000 }}'": "first: * is for numbers",
    "first: '{% for i in range(99999) %}{{ observation }}12345678901{% endfor %}'": "more than 1,000,000 characters",
    "frist: a": "mine.yaml has no option 'frist'; nearest: first",
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
    with pytest.raises(InvalidArgument, match=r"unknown prompt 'tagz'; choose one of plain, tags, .*, or a YAML file"):
        find_prompt("tagz")


def test_a_run_records_the_content_and_needs_no_file(tmp_path, tiny):
    path = tmp_path / "mine.yaml"
    path.write_text(shipped_prompts()["tags"].read_text())
    settings = load("alfworld-quickstart", [f"context.prompt={path}"])
    path.write_text("first: 'Look: {{ observation }}'\naction: {json: action}\n")
    again = parse(parse_yaml(dump(settings)), "config.yaml")
    assert again == settings and again.context.prompt.kind == "tag"
    changed = load("alfworld-quickstart", [f"context.prompt={path}"])
    labels = [make_context(tiny[1], None, **dict(one.context)).conditions["prompt"] for one in (again, changed)]
    assert labels[0] != labels[1] and all(label.startswith("mine ") for label in labels)
    assert changed.context.prompt.turn == Prompt.model_fields["turn"].default
