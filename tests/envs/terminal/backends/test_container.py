"""Containers of podman and docker: their command lines and errors. No image is run."""

import pytest

from gagpo.envs.terminal.backends.base import EpisodeLimits, SandboxUnavailable
from gagpo.envs.terminal.backends.container import ContainerSandbox, arguments


@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_the_command_line(engine):
    line = arguments(
        engine, "docker.io/library/python:3.12", EpisodeLimits(memory=256 << 20, disk=64 << 20, processes=64)
    )
    assert line[:3] == [engine, "run", "--rm"]
    for option in ("--network=none", "--cap-drop=ALL", "--memory=402653184", "--pids-limit=72", "--user=0:0"):
        assert option in line, option
    place = line.index("docker.io/library/python:3.12")
    assert "--entrypoint=bash" in line[:place] and line[place + 1] == "-c"


def stand_in(tmp_path, monkeypatch, script):
    program = tmp_path / "podman"
    program.write_text(f"#!/bin/bash\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_missing_image_is_named(tmp_path, monkeypatch):
    stand_in(
        tmp_path, monkeypatch, "echo 'Trying to pull x...' >&2; echo 'Error: unable to pull x: no host' >&2; exit 125"
    )
    with pytest.raises(SandboxUnavailable, match="podman cannot run the image x: Error: unable to pull x: no host"):
        ContainerSandbox("podman", "x").start({})


def test_a_missing_engine_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="docker is not installed; install it, or use backend=bubblewrap"):
        ContainerSandbox("docker", "x").start({})
