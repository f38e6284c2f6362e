"""The command ``play``: a person acts in an environment, in a pipe and on a terminal."""

import json
import os
import pty
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import gagpo.envs.testing  # noqa: F401 (registers the corridor)
from gagpo.agents.setup import make_context, make_env
from gagpo.cli import person
from gagpo.cli.main import app
from gagpo.envs.pool.opening import open_pool
from gagpo.model.loading import load_tokenizer
from tests.gagpo.base.test_terminal import is_harmless
from tests.rejections import rejects

CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"
FAULTY = "tests.envs.faulty:gagpo-test/Faulty-v0"
EVIL = "\x1b]0;taken\x07\x1b[2J\rgone\u202egnp"


def played(*words, lines=(), status=0):
    """What the command prints when these lines are typed."""
    typed = "".join(f"{line}\n" for line in lines)
    done = CliRunner().invoke(app, ["play", *map(str, words)], input=typed, catch_exceptions=False)
    assert done.exit_code == status, done.output
    return done.output


@pytest.fixture
def here(monkeypatch):
    """Steps the environment in this process, which is faster."""

    def opened(env_id, kwargs, workers):
        return open_pool(env_id, kwargs, workers=0)

    monkeypatch.setattr("gagpo.envs.pool.opening.open_pool", opened)


def test_actions_come_from_a_pipe_and_the_verdict_from_the_environment(here):
    tokens = [CORRIDOR, "--task", "door-07", "--seed", 1, "--expert", "--json"]
    output = played(*tokens, lines=["?", "?x", "", "jump", "left", *["!"] * 20])
    assert "\n> ?\n  left\n  right\n> ?x\nno action contains x\n> \n> jump\n(not a valid action)\n" in output
    assert "expert: left\n> !\n" in output and "(reward 1)\nYou stand at 7. Go to door 7.\n" in output
    assert "\nsuccess  yes\nreward   1\n" in output and "ended    by the environment\n" in output
    assert f"\nagain: gagpo play {CORRIDOR} --task door-07 --seed 1 --expert\n" in output
    record = json.loads(output.splitlines()[-1])
    assert record["success"] and record["invalid"] == 1 and record["actions"][:3] == ["jump", "left", "left"]
    assert record["turns"] == len(record["actions"]) and "tokens" not in record


def test_the_end_of_the_input_and_the_turn_limit_end_the_episode(here):
    output = played(CORRIDOR, "--split", "test", "--seed", 1, lines=["!", "left"])
    assert "--expert shows it where there is one" in output and "task door-" in output and "expert:" not in output
    assert "success  no\nreward   0\nturns    1\nended    by the end of the input" in output
    output = played(CORRIDOR, "-k", "max_turns=2", "--seed", 1, lines=[r"\?", r"\\", "left"])
    assert "turns    2, 2 invalid\nended    at the turn limit" in output
    assert "-k max_turns=2 --task" in output


def test_ctrl_c_ends_it_with_the_verdict(here, monkeypatch):
    typed = iter(["left"])

    def interrupted(prompt, completions=()):
        for line in typed:
            return line
        raise KeyboardInterrupt

    monkeypatch.setattr(person, "read_line", interrupted)
    output = played(CORRIDOR, "--task", "door-03", "--json", status=130)
    assert "turns    1\nended    by Ctrl-C" in output and json.loads(output.splitlines()[-1])["actions"] == ["left"]


@pytest.mark.parametrize(
    ("words", "key", "names"),
    [
        ((CORRIDOR, "--task", "door-99"), None, ("door-99",)),
        ((CORRIDOR, "--split", "test", "--task", "door-01"), None, ("test", "door-01")),
        ((CORRIDOR, "--split", "tset"), None, ("train, test", "tset")),
        ((CORRIDOR, "--prompt", "tags"), "--prompt", ("--model MODEL",)),
        ((CORRIDOR, "--model", "none/of/these"), None, ("none/of/these",)),
        ((CORRIDOR, "-k", "door=1"), "door", ()),
        (("gagpo/Nowhere-v0",), None, ("gagpo/Nowhere-v0",)),
    ],
)
def test_errors_are_one_line_before_the_episode(here, words, key, names):
    with rejects(Exception, *names, key=key):
        played(*words)


def test_an_environment_that_breaks_starts_again_and_then_ends_the_episode(tmp_path):
    tokens = [FAULTY, "--task", "quiet", "--seed", 1]
    output = played(*tokens, "-k", f"marker={tmp_path / 'once'}", lines=["walk", "crash", "end"])
    assert "(the environment failed; the task starts again)" in output and "success  yes" in output
    output = played(*tokens, lines=["crash"] * 4, status=1)
    assert "ended    the environment failed: " in output


def test_tools_are_typed_and_several_calls_of_the_expert_are_one_turn(here):
    tokens = ["gagpo/Storeroom-v0", "--task", "total-lamp-vase", "--seed", 1, "--expert"]
    output = played(*tokens, "--json", lines=["?", "price", "prize lamp", "add 2 3", "!", "!", "!"])
    assert "  price ITEM: What it costs.\n" in output and "there is no tool 'prize'" in output
    record = json.loads(output.splitlines()[-1])
    assert record["success"] and (record["turns"], record["invalid"]) == (5, 1)
    assert record["actions"][1] == '{"name": "add", "arguments": {"a": 2, "b": 3}}'
    assert record["actions"][2].count("price") == 2


@pytest.mark.parametrize(
    ("env", "options", "lines"),
    [
        (CORRIDOR, {"prompt": "tags"}, ["left", "jump", "right"]),
        ("gagpo/Storeroom-v0", {"prompt": "tools"}, ["price lamp", "find lamp", "add 1 2"]),
    ],
)
def test_a_models_tokens_are_those_of_a_rollout(here, env, options, lines):
    model = "starter:alfworld"
    tokens = [env, "--seed", 1, "--model", model, "--prompt", options["prompt"], "--json"]
    output = played(*tokens, lines=lines)
    record = json.loads(output.splitlines()[-1])
    tokenizer = load_tokenizer(model)
    result = make_env(env)
    context = make_context(tokenizer, result, **options)
    observation, _ = result.reset(seed=1, options={"task": record["task"]})
    assert record["tokens"][0]["prompt_ids"] == context.prompt([], observation).tolist()
    for turn, after in zip(record["tokens"], record["tokens"][1:], strict=False):
        row = turn["prompt_ids"] + turn["response_ids"]
        assert after["prompt_ids"][: len(row)] == row
        new = after["prompt_tokens"] - len(row)
        assert f"--- prompt: {after['prompt_tokens']} tokens, {new} of them new" in output
    texts = [tokenizer.decode(turn["response_ids"]) for turn in record["tokens"]]
    assert len(texts) == 3 and all(f"{text}\nids: " in output for text in texts)
    assert "--- response: " in output and "tokens   last prompt " in output


def test_a_config_names_environment_and_prompt(here, tmp_path):
    (tmp_path / "walk.yaml").write_text(
        f"name: walk\nmodel: starter:alfworld\nalgorithm: {{preset: gagpo}}\ncontext: {{prompt: tags}}\n"
        f"environment: {{id: '{CORRIDOR}', kwargs: {{max_turns: 3}}}}\n"
    )
    output = played(tmp_path / "walk.yaml", "--seed", 1, "--model", "starter:alfworld", lines=["left"] * 3)
    assert "<action>left</action>" in output and "ended    at the turn limit" in output


PROGRAM = """
async def play(task, client):
    talk = [{"role": "user", "content": "How much is the lamp?"}]
    schema = {"type": "object", "properties": {"item": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "price", "description": "Costs.", "parameters": schema}}]
    first = (await client.chat.completions.create(model="any", messages=talk, tools=tools)).choices[0].message
    call = first.tool_calls[0]
    talk += [first.model_dump(exclude_none=True), {"role": "tool", "content": "5", "tool_call_id": call.id}]
    last = await client.chat.completions.create(model="any", messages=talk, tools=tools)
    return float(call.function.arguments == '{"item": "lamp"}' and last.choices[0].message.content == "It is 5.")
"""


TOKENS = ("--model", "starter:alfworld")


@pytest.mark.parametrize(
    "words", [pytest.param((), id="text", marks=pytest.mark.slow), pytest.param(TOKENS, id="tokens")]
)
def test_a_person_answers_a_program(tmp_path, monkeypatch, words):
    pytest.importorskip("uvicorn")
    monkeypatch.chdir(tmp_path)
    name = f"asking_{len(words)}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    (tmp_path / "tasks.jsonl").write_text('{"id": "a", "split": "train"}\n')
    env = ["gagpo/Program-v0", "-k", f"agent={name}:play", "-k", "tasks=tasks.jsonl"]
    output = played(*env, *words, lines=["?", "price lamp", "It is 5."])
    assert "  price ITEM: Costs.\n" in output and "success  yes\nreward   1\nturns    2\n" in output
    assert bool(words) == ("<tool_response>\n5\n</tool_response>" in output)


HOSTILE = """
import gymnasium
from gagpo.envs.testing import CorridorEnv
from gagpo.envs.base import Outcome

EVIL = {evil!r}

class HostileEnv(CorridorEnv):
    instructions = EVIL
    def _look(self, **fields):
        return Outcome(EVIL + " word" * 60, admissible_actions=[EVIL, "left"])

gymnasium.register("Hostile-v0", "hostile:HostileEnv", disable_env_checker=True, order_enforce=False)
"""


def test_a_terminal_of_60_columns_obeys_nothing_and_completes_actions(tmp_path):
    (tmp_path / "hostile.py").write_text(HOSTILE.format(evil=EVIL))
    screen, terminal = pty.openpty()
    variables = {**os.environ, "TERM": "dumb", "COLUMNS": "60", "GAGPO_DATA": str(tmp_path)}
    command = [sys.executable, "-m", "gagpo", "play", "hostile:Hostile-v0", "--seed", "1"]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, cwd=tmp_path, env=variables, start_new_session=True
    )
    os.close(terminal)
    printed = _read_until(screen, b"> ")
    os.write(screen, b"?\n")
    printed += _read_until(screen, b"> ")
    os.write(screen, b"le\t\n")
    printed += _read_until(screen, b"> ")
    os.write(screen, b"\x04")
    printed += _read_until(screen, None)
    os.close(screen)
    assert process.wait(60) == 0, printed
    text = printed.decode().replace("\r\n", "\n").replace("\r", "")  # readline draws its line again
    assert is_harmless(text) and r"\x1b]0;taken\x07\x1b[2J\rgone\u202egnp" in text.replace("\n", "")
    assert max(map(len, text.split("\nagain: ")[0].splitlines())) <= 60
    assert "> left" in text and "turns    1" in text and "by the end of the input" in text


def _read_until(handle, mark):
    """What a program prints up to ``mark``; to its end for None."""
    printed = b""
    while mark is None or not printed.endswith(mark):
        try:
            chunk = os.read(handle, 1 << 16)
        except OSError:  # the program has ended
            chunk = b""
        if not chunk:
            break
        printed += chunk
    return printed


def test_a_model_acts_while_a_person_watches(here, finished):
    """With the temperature and the prompts of its run, and the same episode again for the same seeds."""
    tokens = [CORRIDOR, "--task", "door-01", "--seed", 1, "--model", finished, "--watch", "--json"]
    outputs = [played(*tokens) for _ in range(2)]
    record = json.loads(outputs[0].splitlines()[-1])
    assert outputs[0] == outputs[1] and f"{finished} acts" in outputs[0] and "You stand at" in outputs[0]
    assert record["turns"] == len(record["actions"]) == len(record["tokens"]) and "\n> " in outputs[0]
    assert f"--model {finished} --watch\n" in outputs[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--watch"], "--watch is for a model; add --model MODEL"),
        (["--watch", "--model", "starter:alfworld", "--expert"], "leave out --expert or --watch"),
    ],
)
def test_options_of_a_model_that_acts(inside, words, message):
    done = inside("play", CORRIDOR, *words)
    assert done.returncode == 2 and message in done.stderr
