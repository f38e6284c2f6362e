"""Task folders in Harbor's format: played through, and faults of the files named in one line."""

import gymnasium
import pytest

import gagpo.envs  # noqa: F401 (registers)
from gagpo.base.errors import GagpoError
from gagpo.envs.terminal import harbor
from gagpo.envs.terminal.harbor import BadTaskFolder, HarborTask, environment_tree, read_tasks
from gagpo.envs.terminal.tree import file, link
from tests.rejections import rejects

SETTINGS = """version = "1.0"

[metadata]
author_name = "nobody"
difficulty = "easy"

[verifier]
timeout_sec = 30.0

[agent]
timeout_sec = 60.0
"""
TESTS = """#!/bin/bash
cd /app
if [ "$(cat greeting.txt)" = "hello $(cat name.txt)" ] && [ -z "$(find /tests -newer /tests/test.sh)" ]; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


def make_task(root, name="greet", dockerfile="FROM ubuntu:24.04\nWORKDIR /app\nCOPY name.txt /app/\n"):
    """A task by hand, from the format's documentation."""
    folder = root / name
    for segment in ("environment", "tests", "solution"):
        (folder / segment).mkdir(parents=True)
    (folder / "task.toml").write_text(SETTINGS)
    (folder / "instruction.md").write_text(f"Write a greeting of the person in name.txt to greeting.txt ({name}).\n")
    (folder / "environment" / "name.txt").write_text(f"{name}\n")
    if dockerfile:
        (folder / "environment" / "Dockerfile").write_text(dockerfile)
    (folder / "tests" / "test.sh").write_text(TESTS)
    (folder / "solution" / "solve.sh").write_text('#!/bin/bash\nset -e\necho "hello $(cat name.txt)" > greeting.txt\n')
    return folder


def play(folder, actions, **kwargs):
    env = gymnasium.make("gagpo/Terminal-v0", tasks=str(folder), split="test", **kwargs)
    try:
        text, info = env.reset(seed=0)
        for action in actions:
            text, reward, terminated, _, info = env.step(action or info["expert_action"])
        return text, reward, terminated, info
    finally:
        env.close()


def test_a_folder_is_played_through(sandbox, tmp_path):
    folder = make_task(tmp_path)
    assert play(folder, ["echo hello greet > greeting.txt", "submit"])[1:3] == (1.0, True)
    assert play(folder, ["echo hello > greeting.txt", "submit"])[1:3] == (0.0, True)
    text, reward, _, info = play(folder, [None, None], expert=True)
    assert (reward, info["success"], info["verdict"], text) == (1.0, True, "right", "The task is solved.")
    assert info["task"] == "greet" and info["task_type"] == "harbor"


def test_without_a_dockerfile_the_environment_is_the_tree(sandbox, tmp_path):
    folder = make_task(tmp_path, dockerfile="")
    assert play(folder, ["ls", "echo hello greet > greeting.txt", "submit"])[1] == 1.0


def test_a_folder_of_folders_is_divided(tmp_path):
    for number in range(12):
        make_task(tmp_path, f"task{number}")
    tasks = read_tasks(tmp_path)
    assert sum(map(len, tasks.values())) == 12 and all(len(tasks[split]) for split in ("train", "validation", "test"))
    assert not len(tasks["unseen"])


@pytest.mark.parametrize(
    ("text", "reward"),
    [("1", 1.0), ("0.5\n", 0.5), ("7", 1.0), ("-1", 0.0), ("nan", 0.0), ("1e999", 0.0), ("yes", 0.0), ("", 0.0),
     ("[1]", 0.0), ('{"reward": 0.25}', 0.25), ('{"reward": "1"}', 0.0), ("true", 1.0), ("9" * 20_000, 0.0)],
)  # fmt: skip
def test_rewards_are_numbers_from_0_to_1(text, reward):
    assert harbor._reward({"verifier/reward.txt": file(text)}) == reward
    assert harbor._reward({"verifier/reward.txt": link("/tmp/x")}) == 0.0


def test_tests_see_no_links_out_of_the_tree_and_no_added_settings():
    task = HarborTask("", {"conftest.py": file("mine")}, {}, (), 1.0)
    retained = {"conftest.py": file("changed"), "a": link("b/../c"), "d/e": link("../a"), "f": link("/app/a")}
    added = {
        "d/conftest.py": file(""),
        "x.pth": file(""),
        "g": link("/etc"),
        "h": link("../../x"),
        "d/i": link("../../x"),
    }
    assert task._judged(retained | added) == retained


FAULTS = {
    "no toml": ("task.toml", "version = ", ("Invalid value",)),
    "another timeout": ("task.toml", "[verifier]\ntimeout_sec = 'x'", ("timeout_sec",)),
    "an infinite timeout": ("task.toml", "[verifier]\ntimeout_sec = inf", ("timeout_sec",)),
    "no table": ("task.toml", "verifier = 3", ("timeout_sec",)),
    "other characters": ("instruction.md", b"\xff\xfe", ("UTF-8", "byte 0")),
    "an unknown image": ("environment/Dockerfile", "FROM nginx", ("'FROM nginx'", "backend=docker")),
    "a build step": (
        "environment/Dockerfile",
        "FROM ubuntu\nRUN make\\\n all",
        ("line 2", "'RUN make  all'"),
    ),
    "another folder": ("environment/Dockerfile", "FROM ubuntu\nWORKDIR /root", ("line 2", "image")),
    "a missing file": ("environment/Dockerfile", "FROM ubuntu\nCOPY x .", ("x is missing",)),
    "a file elsewhere": ("environment/Dockerfile", "FROM ubuntu\nCOPY name.txt /etc/x", ("/app",)),
    "several containers": ("environment/docker-compose.yaml", "services: {}", ("several containers",)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_one_line_with_the_path(tmp_path, name):
    path, content, names = FAULTS[name]
    folder = make_task(tmp_path)
    (folder / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    with rejects(BadTaskFolder, *names) as error:
        HarborTask.read(folder)
    assert str(folder / path.split("/")[0]) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["task.toml", "instruction.md", "tests/test.sh", "environment", "tests"])
def test_missing_files_are_named(tmp_path, path):
    folder = make_task(tmp_path)
    (folder / path).rename(folder / "elsewhere")
    with rejects(BadTaskFolder, path.split("/")[0]):
        HarborTask.read(folder)
    (folder / path).symlink_to(folder / "elsewhere")  # a link could lead to any file of this machine
    with pytest.raises(BadTaskFolder):
        HarborTask.read(folder)


def test_links_of_a_folder_stay_links(tmp_path):
    folder = make_task(tmp_path, dockerfile="")
    (folder / "environment" / "passwords").symlink_to("/etc/passwd")
    assert environment_tree(folder / "environment")["passwords"] == link("/etc/passwd")


@pytest.mark.parametrize(
    "make", [lambda root: root / "missing", lambda root: root, lambda root: make_task(root) / "task.toml"]
)
def test_other_folders_are_refused(tmp_path, make):
    with rejects(BadTaskFolder):
        read_tasks(make(tmp_path))


def test_copies_of_a_dockerfile(tmp_path):
    root = tmp_path / "environment"
    (root / "src" / "deep").mkdir(parents=True)
    (root / "src" / "deep" / "a").write_text("a")
    (root / "b").write_text("b")
    lines = {
        "COPY . .": {"src/deep/a", "b"},
        "COPY . /app/x": {"x/src/deep/a", "x/b"},
        "COPY src /app": {"deep/a"},
        "ADD b c": {"c"},
        "COPY b /app/d/": {"d/b"},
        "copy ./src/deep/ deep2": {"deep2/a"},
    }
    for line, expected in lines.items():
        (root / "Dockerfile").write_text(f"# comment\nFROM docker.io/library/python:3.12-slim AS x\n{line}\nCMD bash\n")
        assert {path for path, node in environment_tree(root).items() if node.kind == "f"} == expected, line


def test_an_error_reaches_the_user(tmp_path):
    with rejects(GagpoError, "no task.toml"):
        gymnasium.make("gagpo/Terminal-v0", tasks=str(tmp_path)).reset()
