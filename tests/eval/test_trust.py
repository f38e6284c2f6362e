"""Which arguments of a stored run may name code, and that no argument which is imported is left out."""

from __future__ import annotations

import ast
import importlib
from contextlib import suppress
from pathlib import Path

import gymnasium
import pytest

import gagpo.envs
from gagpo.base.errors import GagpoError
from gagpo.envs.arguments import build, signature_of
from gagpo.envs.lookup import find_spec, maker
from gagpo.eval.trust import UntrustedCode, require_environment_trust
from tests.folders import needs, present
from tests.rejections import rejects

PROBE = "probe_of_arguments"
IDS = [*(name for name in gymnasium.registry if name.startswith("gagpo/")), "CartPole-v1"]
REQUIRED = {"gagpo/MCP-v0": {"command": "python", "tasks": "none"}, "gagpo/Program-v0": {"tasks": "none"}}
IMPORTERS = {"import_module", "import_from_here", "__import__", "exec", "eval", "load_env_creator", "make", "find"}
IMPORTERS |= {"exec_module", "run_path", "run_module", "from_json", "spec_from_file_location"}
ARGUMENTS = {
    "plain.py": ("CartPole-v1", {"spec"}),
    "program/process.py": ("gagpo/Program-v0", {"command", "agent", "reward"}),
    "program/env.py": ("gagpo/Program-v0", {"agent", "reward"}),
    "web/source.py": ("gagpo/Web-v0", {"source"}),
    "rewarded.py": ("gagpo/Program-v0", {"reward"}),  # of every environment, see the test of reward functions
}
"""The environments' files that import what an argument names, and the arguments."""
OTHERS = {
    "arguments.py",
    "lookup.py",
    "check",
    "pool",
    "vector.py",
    "textarena/registration.py",
    "reasoning_gym/evaluation.py",
    "terminal/backends/harbor.py",
    "terminal/backends/remote_step.py",
    "gateway/json_values.py",
}
"""Files that import an id, which is checked as one; a registered game; modules that the package itself names; a file
that it wrote into a sandbox itself; and JSON, which is read by a function of an importer's name."""


def listed(env_id: str) -> set[str]:
    creator = maker(env_id)
    return set(getattr(creator, "code_arguments", ())) | set(getattr(creator, "code_names", ()))


@pytest.mark.parametrize("env_id", IDS)
def test_every_argument_that_reaches_an_importer_needs_consent(env_id, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    imported = []
    real_import = importlib.import_module

    def import_module(name, package=None):
        if PROBE in name:
            imported.append(name)
        return real_import(name, package)

    monkeypatch.setattr(importlib, "import_module", import_module)
    for name in ("require_selenium", "find_programs"):  # arguments are read before a browser is needed
        if present("envs/web"):
            monkeypatch.setattr(f"gagpo.envs.web.driver.{name}", lambda: None)
    reached = set()
    for name in signature_of(find_spec(env_id)).names:
        for value in (f"{PROBE}:Name", [f"{PROBE}:Name"], {PROBE: f"{PROBE}:Name"}):
            imported.clear()
            with suppress(GagpoError, ValueError, TypeError, gymnasium.error.Error):  # most are something else
                build(env_id, {**REQUIRED.get(env_id, {}), name: value}).close()
            if imported:
                reached.add(name)
    assert reached <= listed(env_id)
    if env_id == "gagpo/Web-v0":
        assert reached == {"source"}  # so the probe is one


def test_no_other_file_of_the_environments_imports_what_an_argument_names():
    root = Path(gagpo.envs.__file__).parent
    importing = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            function = node.func if isinstance(node, ast.Call) else None
            name = getattr(function, "attr", getattr(function, "id", ""))
            owner = getattr(getattr(function, "value", None), "id", "")
            is_lookup = name not in ("find", "make") or owner.isupper() or owner == "gymnasium"
            if name in IMPORTERS and is_lookup:
                importing.add(path.relative_to(root).as_posix())
    explained = {name for name in importing if name in OTHERS or name.partition("/")[0] in OTHERS}
    expected = {file: entry for file, entry in ARGUMENTS.items() if (root / file).exists()}
    assert importing - explained == set(expected)
    for env_id, arguments in expected.values():
        assert arguments <= listed(env_id)


@needs("envs/web")
@pytest.mark.parametrize("source", ["evil:Source", "evil-2:Source", "https://x", "a b:C", "gagpo2:X", " evil:X"])
def test_a_source_that_is_imported_needs_consent_however_its_module_is_called(source, tmp_path):
    with rejects(UntrustedCode, "environment.kwargs.source"):
        require_environment_trust(tmp_path, "gagpo/Web-v0", None, {"source": source})


@pytest.mark.parametrize(
    "value", ["evil:Name", "deep.evil:Name.inner", "my-file:Name", " evil:Name\n", ["x", "evil:N"]]
)
def test_an_argument_that_looks_like_code_needs_consent_in_every_environment(value, tmp_path):
    for environment in ("CartPole-v1", "gagpo/Math-v0", "scienceworld"):
        with rejects(UntrustedCode, "environment.kwargs.anything"):
            require_environment_trust(tmp_path, environment, None, {"anything": value})


@pytest.mark.parametrize("reward", ["evil:f", ["my own:f"], {"evil:f": 1, "environment": 2}, "evil-2:f.g h"])
@pytest.mark.parametrize("environment", ["CartPole-v1", "gagpo/Math-v0", "gagpo/ALFWorld-v0", "gagpo/Program-v0"])
def test_a_reward_function_needs_consent_in_every_environment(environment, reward, tmp_path):
    with rejects(UntrustedCode, "environment.kwargs.reward"):
        require_environment_trust(tmp_path, environment, None, {"reward": reward})


def test_arguments_that_name_no_code_need_no_consent(tmp_path):
    values = ["miniwob", "http://10.0.0.5:4444", "127.0.0.1:80", "0-199", "Answer: yes", "12:30", "a/b:c", 3, None]
    values += ["gagpo.envs.web.shop:ShopSite", {"train": "0-9", "test": ["10-19"]}]
    for value in values:
        require_environment_trust(tmp_path, "gagpo/Math-v0", None, {"data": value})
    for source in ("miniwob", "folder", "webshop", "an-installed-one", "gagpo.envs.web.shop:ShopSite"):
        require_environment_trust(tmp_path, "gagpo/Web-v0", None, {"source": source})
