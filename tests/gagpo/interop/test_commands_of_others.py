"""The command lines that the pages print for other suites, run as they are, with a server in place of the model."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agents.chat_server import serving

pytestmark = pytest.mark.interop
CORRIDOR = "gagpo.envs.testing:gagpo-test/Corridor-v0"


def run(command, folder, **variables):
    found = subprocess.run(
        [str(Path(sys.executable).with_name(command[0])), *command[1:]],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-2000:]
    return found.stdout


def test_inspect_evaluates_by_its_own_command(tmp_path):
    pytest.importorskip("inspect_ai")
    with serving(style="<action>{}</action>") as server:
        command = ["inspect", "eval", "gagpo/env", "--model", "openai-api/local/walker"]
        options = ["-T", f"env_id={CORRIDOR}", "-T", "split=test", "-T", "tasks=2"]
        output = ["--log-dir", "logs", "--log-format", "json", "--display", "plain"]
        address = server.url if server.url.endswith("/v1") else f"{server.url}/v1"
        run([*command, *options, *output], tmp_path, LOCAL_API_KEY="none", LOCAL_BASE_URL=address)
    (log,) = (tmp_path / "logs").glob("*.json")
    found = json.loads(log.read_text())
    assert found["status"] == "success" and len(found["samples"]) == 2
    assert [sample["scores"]["success"]["value"] for sample in found["samples"]] == [1.0, 1.0]
