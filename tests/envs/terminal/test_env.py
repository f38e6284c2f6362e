"""The environment: actions, ends, tools, states and experts."""

import gc
import os

import gymnasium
import pytest

import gagpo.envs  # noqa: F401 (registers)
from gagpo.base.errors import InvalidArgument
from gagpo.envs.terminal.backends.base import SandboxLost
from gagpo.envs.tools import ToolCall
from tests.rejections import rejects

FAMILIES = ["count-lines", "set-env", "move-by-ending"]


@pytest.fixture
def make(sandbox):
    """Makes environments, and closes them after the test."""
    environments = []

    def make_environment(**kwargs):
        env = gymnasium.make("gagpo/Terminal-v0", **{"families": FAMILIES, "size": 30, "test_size": 10, **kwargs})
        environments.append(env)
        return env

    yield make_environment
    for env in environments:
        env.close()


def test_an_episode(make):
    env = make(expert=True)
    text, info = env.reset(seed=0, options={"task": "count-lines-1-train-000000-0"})
    assert text.endswith("The shell is in /app.") and info["expert_action"].startswith("wc -l")
    text, reward, terminated, _, info = env.step("echo a; echo b >&2; cd /tmp; false")
    assert (text, reward, terminated) == ("a\nb\n[exit status 1, in /tmp]", 0.0, False)
    assert (info["exit_status"], info["valid"], info["changes"]) == (1, True, [])
    assert env.step("cd /app")[0] == "[exit status 0, in /app]"
    assert env.step(info["expert_action"])[4]["changes"]
    text, reward, terminated, truncated, info = env.step("submit")
    assert (text, reward, terminated, truncated) == ("The task is solved.", 1.0, True, False)
    assert info["verdict"] == "right" and info["success"]


def test_the_last_turn_is_judged(make):
    env = make(max_turns=1)
    env.reset(seed=0, options={"task": "count-lines-1-train-000000-0"})
    name = env.unwrapped.exercise.solution[0]
    text, reward, terminated, truncated, _ = env.step(name)
    assert text.endswith("The task is solved.") and (reward, terminated, truncated) == (1.0, False, True)
    env.reset(seed=0, options={"task": "count-lines-1-train-000000-0"})
    assert env.step("\0")[1] == 0.0


@pytest.mark.parametrize(
    ("action", "reason"),
    [("", "empty"), (" \n", "empty"), ("x" * 20_001, "20,000 characters"), ("a\0b", "NUL"), ("\ud800", "surrogate")],
)
def test_what_is_no_command(make, action, reason):
    env = make()
    _, info = env.reset(seed=0)
    text, reward, terminated, _, after = env.step(action)
    assert reason in text and not after["valid"] and not terminated and reward == 0.0
    assert after["state"] == info["state"]


def test_what_ends_a_shell_is_said(make):
    env = make(command_timeout=0.3)
    env.reset(seed=0)
    assert "[stopped: it took more than 0.3 s]\n[the shell ended; a new one runs" in env.step("sleep 9")[0]
    assert env.step("exit 4")[0].endswith("of the old one]\n[exit status 4, in /app]")
    assert "syntax error" in env.step("if (")[0]


def test_changes_can_be_shown(make):
    env = make(show_changes=True)
    env.reset(seed=0)
    assert env.step("mkdir x; touch x/y")[0] == "[exit status 0, in /app]\n+ app/x\n+ app/x/y"
    assert env.step("ls x")[0] == "y\n[exit status 0, in /app]"


def test_info_has_the_changed_lines_of_each_turn_also_of_the_last(make):
    env = make(max_turns=2)
    assert env.reset(seed=0)[1]["diff"] == ""
    assert env.step("echo 1 > n; echo 2 >> n")[4]["diff"] == "new app/n\n+1\n+2"
    *_, truncated, info = env.step("echo 3 >> n")
    assert truncated and info["diff"] == "changed app/n\n+3"


def test_tools(make):
    env = make(form="tools", expert=True)
    _, info = env.reset(seed=0, options={"task": "count-lines-1-train-000000-0"})
    assert '"name": "bash"' in info["expert_action"]
    calls = [
        (ToolCall("write", {"path": "a b/c", "text": "x"}), 1),
        (ToolCall("bash", {"command": "mkdir 'a b'"}), 0),
        (ToolCall("write", {"path": "a b/c", "text": "it's $HOME\n"}), 0),
        (ToolCall("edit", {"path": "a b/c", "old": "$HOME", "new": "\\1 'new'"}), 0),
        (ToolCall("edit", {"path": "a b/c", "old": "nothing", "new": ""}), 1),
    ]
    for call, status in calls:
        assert env.step(call.text)[4]["exit_status"] == status, call
    assert env.step(ToolCall("read", {"path": "a b/c"}).text)[0].startswith("it's \\1 'new'\n[exit status 0")
    for text in ("ls", '{"name": "bash"}', '{"name": "bash", "arguments": {"command": "a\\u0000"}}', '{"name": "x"}'):
        assert not env.step(text)[4]["valid"], text
    assert env.step(ToolCall("submit").text)[2]


@pytest.mark.parametrize("form", ["text", "tools"])
def test_experts(make, form):
    successes = {}
    for expert in (True, "imperfect"):
        env = make(expert=expert, form=form)
        for task in env.unwrapped.tasks("train").ids[:8]:
            _, info = env.reset(seed=0, options={"task": task})
            terminated = False
            while not terminated:
                _, _, terminated, _, info = env.step(info["expert_action"])
            successes.setdefault(expert, []).append(info["success"])
    assert all(successes[True]) and not any(successes["imperfect"])


def test_states_are_equal_over_episodes_and_restored(make):
    env, other = make(), make()
    task = {"task": "move-by-ending-1-train-000000-0"}
    keys = [environment.reset(seed=number, options=task)[1]["state"] for number, environment in enumerate((env, other))]
    assert keys[0] == keys[1]
    first = env.step("mkdir x; Y=2")[4]["state"]
    other.step("ls")
    assert other.step("Y=2; mkdir x")[4]["state"] == first
    saved = env.unwrapped.save()
    assert env.step("rm -r *; exit")[4]["state"] != first
    env.unwrapped.restore(saved)
    assert env.step("true")[4]["state"] == other.step("true")[4]["state"]


def test_a_lost_sandbox_ends_the_episode_and_not_the_training(make, monkeypatch):
    env = make()
    env.reset(seed=0)

    def lose(command, seconds):
        raise SandboxLost("the sandbox ended")

    monkeypatch.setattr(env.unwrapped.sandbox, "run", lose)
    text, reward, terminated, _, info = env.step("ls")
    assert terminated and reward == 0.0 and info["verdict"] == "lost" and "the sandbox ended" in text
    monkeypatch.undo()
    env.reset(seed=0)
    assert env.step("pwd")[0].startswith("/app")


def test_files_with_holes_end_the_episode(make):
    env = make()
    env.reset(seed=0)
    text, reward, terminated, _, info = env.step("for i in $(seq 20); do truncate -s 30M f$i; done")
    assert terminated and reward == 0.0 and info["verdict"] == "lost" and "256 MiB" in text
    env.reset(seed=0)
    assert env.step("submit")[0] == "The task is not solved."


def test_an_environment_that_is_dropped_ends_its_sandbox(sandbox):
    env = gymnasium.make("gagpo/Terminal-v0", families=["git-recover"])
    env.reset(seed=0)
    process = env.unwrapped.sandbox.process
    assert os.path.exists(f"/proc/{process}")
    del env
    gc.collect()
    assert not os.path.exists(f"/proc/{process}")


@pytest.mark.parametrize(
    ("kwargs", "key", "names"),
    [
        ({"form": "x"}, "form", ("text, tools",)),
        ({"backend": "x"}, "backend", ("bubblewrap, podman, docker",)),
        ({"backend": "podman"}, "backend", ("needs an image",)),
        ({"image": "x"}, "image", ("no image",)),
        ({"command_timeout": 0}, "command_timeout", ("0",)),
        ({"size": -1}, "size", ("0",)),
        ({"chain": 0}, "chain", ("1",)),
        ({"memory": 1}, "memory", ("16",)),
        ({"levels": 9}, "levels", ("from 1 to 3",)),
        ({"levels": []}, "levels", ()),
    ],
)
def test_wrong_arguments(kwargs, key, names):
    with rejects(InvalidArgument, *names, key=key):
        gymnasium.make("gagpo/Terminal-v0", **kwargs)


def test_an_unknown_family_names_the_nearest():
    with rejects(InvalidArgument, advice="set-env"):
        gymnasium.make("gagpo/Terminal-v0", families=["set-envs"]).unwrapped.tasks("train")
