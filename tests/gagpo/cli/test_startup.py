"""Mistakes are answered before anything heavy is imported, and before anything is made."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

HEAVY = {"torch", "transformers", "datasets", "matplotlib", "sympy", "scipy", "pandas", "safetensors"}
RUN = """
import io, json, os, sys
from pathlib import Path
from gagpo.cli.main import main

folder, cases = Path(sys.argv[1]), json.loads(sys.argv[2])
for number, words in enumerate(cases):
    if number == int(sys.argv[3]):  # every command after the helps reads settings or finds an environment
        import gagpo.eval.models, gagpo.settings
    place = folder / str(number)
    place.mkdir()
    child = os.fork()
    if not child:
        os.chdir(place)
        os.environ["GAGPO_DATA"] = str(place / "data")
        sys.argv, sys.stdout = ["gagpo", *words], io.StringIO()
        sys.stderr = sys.stdout
        try:
            main()
        except SystemExit as end:
            status = end.code
        found = {"status": status, "modules": sorted(sys.modules), "said": sys.stdout.getvalue()}
        (folder / f"{number}.json").write_text(json.dumps(found))
        os._exit(0)
    os.waitpid(child, 0)
"""
MISTAKES = {
    "a key": (["train", "alfworld-quickstart", "rollout.sampels=3"], "unknown key 'rollout.sampels'"),
    "no argument": (["train", "alfworld-quickstart", "-k", "size"], "an argument must be name=value, got 'size'"),
    "a config": (["train", "alfworld-frist"], "nearest: alfworld-quickstart"),
    "an old config": (["train", "alfworld-first"], "config 'alfworld-first' is renamed to 'alfworld-quickstart'"),
    "an old option": (["eval", "expert", "--tries", "2"], "--tries is renamed to --episodes-per-task"),
    "another old option": (["sft", "alfworld-small", "--again"], "--again is renamed to --overwrite"),
    "a device": (["train", "alfworld-quickstart", "device=xpu:99x"], "device must be one of"),
    "a device that is not here": (["train", "alfworld-quickstart", "device=cuda"], "device 'cuda' cannot be used here"),
    "an environment": (["train", "alfworld-quickstart", "environment.id=gagpo/No-v0"], "known here: gagpo/ALFWorld-v0"),
    "a tracker": (["train", "alfworld-quickstart", "trackers=[wandbb]"], "nearest: wandb"),
    "a tracker's package": (
        ["train", "alfworld-quickstart", "trackers=[wandb]"],
        "tracker wandb needs the package wandb",
    ),
    "an engine's package": (["train", "alfworld-quickstart", "engine=vllm"], "vLLM, which is not installed"),
    "an environment's package": (
        ["train", "alfworld-quickstart", "environment.id=nowhere:X-v0"],
        "If it is a package, install it",
    ),
    "a tracker of SFT": (["sft", "alfworld-smollm2", "trackers=[wandb]"], "needs the package wandb"),
    "a window": (["train", "alfworld-quickstart", "context.history=-5"], "history must be full or a number of turns"),
    "samples": (["train", "alfworld-quickstart", "rollout.group_size=1e8"], "held in memory until the update"),
    "threads": (["train", "alfworld-quickstart", "threads=1024"], "threads=1024 is more than"),
    "a trained model": (["train", "alfworld-quickstart", "model=runs/none"], "there is no run or model runs/none"),
    "a starter": (["train", "alfworld-quickstart", "model=starter:none"], "there is no starter 'none'"),
    "a run to resume": (["train", "--resume", "none"], "none: is not a run"),
    "no SFT": (["sft", "alfworld-qwen"], "has no section 'sft'"),
    "a run to evaluate": (["eval", "runs/none"], "there is no run or model runs/none"),
    "a name to evaluate": (["eval", "none"], "there is no run or model folder none"),
    "a folder to evaluate": (["eval", ".", "--env", "gagpo/Math-v0"], "neither a run (no config.yaml) nor a model"),
    "a hub name": (
        ["eval", "nobody/none", "--like", "alfworld-quickstart"],
        "it is not in the cache, and the hub cannot be",
    ),
    "a device of eval": (["eval", "starter:alfworld", "--device", "cuda"], "'cuda' cannot be used here"),
    "a split": (["eval", "random", "--env", "gagpo/Math-v0", "--split", "moon"], "no split 'moon'"),
    "an export": (["export", "none", "out"], "none: there is no such file, and no run of that name"),
    "a plan": (["plan", "alfworld-quickstart", "lamda=1"], "override 'lamda=1': unknown key"),
    "an engine": (["doctor", "--engine", "none"], "there is no engine 'none'"),
    "a comparison": (["compare", "none", "none2"], "none: cannot be read"),
    "a report": (["report", "none"], "none: not a run folder"),
    "a view": (["view", "none"], "none: no such run folder or file"),
    "an argument of train": (["train", "alfworld-quickstart", "-k", "max_turn=3"], "nearest: max_turns"),
    "an argument of SFT": (["sft", "alfworld-smollm2", "environment.kwargs.max_turn=3"], "nearest: max_turns"),
    "an argument of eval": (["eval", "random", "--env", "gagpo/Math-v0", "-k", "max_turn=3"], "nearest: max_turns"),
    "an argument of plan": (["plan", "alfworld-quickstart", "environment.kwargs.max_turn=3"], "nearest: max_turns"),
    "an argument of check": (["check", "gagpo/Math-v0", "-k", "wrong=Q"], "known: attempts, columns"),
    "a missing argument": (["check", "gagpo/Program-v0"], "gagpo/Program-v0: requires the argument tasks"),
    "a config to check": (["check", "none.yaml"], "there is no settings file none.yaml"),
    "an environment to check": (["check", "gagpo/No-v0"], "known here: gagpo/ALFWorld-v0"),
    "a number": (["eval", "random", "--tasks", "x"], "'--tasks': must be an integer"),
    "an option": (["train", "--iterations", "3"], "training.iterations=3"),
}


HELP = [["--help"], ["--version"], ["train", "--help"], ["eval", "--help"]]


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    """Status, imported modules, what was said and what was made, by command; each in a process that imported nothing.

    The processes are forks: first of one that has imported the command line only, then of one with the settings too.
    """
    folder = tmp_path_factory.mktemp("startup")
    cases = HELP + [tokens for tokens, _ in MISTAKES.values()]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    command = [sys.executable, "-P", "-c", RUN, str(folder), json.dumps(cases), str(len(HELP))]
    subprocess.run(command, env=environment, timeout=300, check=True)
    results = {}
    for number, tokens in enumerate(cases):
        record = json.loads((folder / f"{number}.json").read_text())
        modules = {module.partition(".")[0] for module in record["modules"]}
        results[tuple(tokens)] = record["status"], modules, record["said"], list((folder / str(number)).iterdir())
    return results


@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_before_anything_is_imported_or_made(answered, words, said):
    if "cuda" in " ".join(words) and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("this machine has one")
    if any(find_spec(name) for name in ("wandb", "vllm") if name in " ".join(words)):
        pytest.skip("the package is installed here")
    status, modules, printed, result = answered[tuple(words)]
    assert status == 2 and said in " ".join(printed.split()), printed
    assert not modules & HEAVY
    assert result == []


@pytest.mark.parametrize("words", HELP)
def test_help_imports_next_to_nothing(answered, words):
    status, modules, _, _ = answered[tuple(words)]
    assert status == 0 and not modules & HEAVY
    assert not modules & {"gymnasium", "numpy"}
