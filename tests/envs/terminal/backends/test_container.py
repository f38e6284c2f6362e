"""Containers of podman and docker: their command lines and errors. No image is run."""

import shlex

import pytest

from gagpo.base.sandbox import SandboxUnavailable
from gagpo.envs.terminal.backends import bubblewrap
from gagpo.envs.terminal.backends.base import EpisodeLimits
from gagpo.envs.terminal.backends.container import ContainerSandbox, arguments
from gagpo.envs.terminal.tree import file
from tests.rejections import rejects


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_command_line(engine):
    line = arguments(
        engine, "docker.io/library/python:3.12", EpisodeLimits(memory=256 << 20, disk=64 << 20, processes=64)
    )
    assert line[:3] == [engine, "run", "--rm"]
    for option in (
        "--network=none",
        "--cap-drop=ALL",
        "--memory=402653184",
        "--pids-limit=72",
        "--user=0:0",
        "--read-only",
    ):
        assert option in line, option
    location = line.index("docker.io/library/python:3.12")
    assert "--entrypoint=bash" in line[:location] and line[location + 1] == "-c"


def stand_in(tmp_path, monkeypatch, script):
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_missing_image_is_named(tmp_path, monkeypatch):
    stand_in(
        tmp_path, monkeypatch, "echo 'Trying to pull x...' >&2; echo 'Error: unable to pull x: no host' >&2; exit 125"
    )
    with rejects(SandboxUnavailable, "podman", "image x", "no host"):
        ContainerSandbox("podman", "x").start({})


def test_a_missing_engine_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with rejects(SandboxUnavailable, "docker", advice="backend=bubblewrap"):
        ContainerSandbox("docker", "x").start({})


def test_the_supervisor_runs_over_standard_streams_on_the_files_of_an_image(sandbox, tmp_path, monkeypatch):
    """The stand-in for podman runs the container's command in bubblewrap, over a folder that is the image's."""
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "from-image").write_text("image\n")
    (tmp_path / "image" / "both").write_text("image\n")
    line = bubblewrap.arguments(0, {})
    line = line[: line.index("--remount-ro")]
    command = shlex.join([*line, "--bind", str(tmp_path / "image"), "/app", "--clearenv", "--chdir", "/", "--"])
    stand_in(tmp_path, monkeypatch, f'while [ "$1" != IMAGE ]; do shift; done; shift; exec {command} bash "$@"')
    container = ContainerSandbox("podman", "IMAGE")
    try:
        for _ in range(2):
            container.start({"both": file("task\n"), "new/a": file("task\n")})
            assert container.run("cat from-image both new/a; rm *", 5.0).output.text() == "image\ntask\ntask\n"
            assert set(container.files()) == {"new", "new/a"}
            container.kill()
        container.start({}, {"/tests": {"test.sh": file("echo 1 > /logs/x")}})
        container.run("bash /tests/test.sh", 5.0)
        assert container.files("/logs")["x"].content == b"1\n"
    finally:
        container.close()
