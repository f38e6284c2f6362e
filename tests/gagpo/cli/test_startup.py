"""Mistakes are answered before anything heavy is imported, and before anything is made."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {"torch", "transformers", "datasets", "matplotlib", "sympy", "scipy", "pandas", "safetensors"}
RUN = "import sys; sys.argv = ['gagpo', *{words!r}]\n" + (
    "from gagpo.cli.main import main\n"
    "try:\n    main()\n"
    "except SystemExit as end:\n    import json; print(json.dumps([end.code, sorted(sys.modules)]))"
)
MISTAKES = {
    "a key": (["train", "alfworld-first", "rollout.sampels=3"], "unknown key 'rollout.sampels'"),
    "no argument": (["train", "alfworld-first", "-k", "size"], "an argument looks like name=value, got 'size'"),
    "a config": (["train", "alfworld-frist"], "nearest: alfworld-first"),
    "a device": (["train", "alfworld-first", "device=xpu:99x"], "a device is one of"),
    "a device that is not here": (["train", "alfworld-first", "device=cuda"], "device 'cuda' cannot be used here"),
    "an environment": (["train", "alfworld-first", "environment.id=gagpo/No-v0"], "known here: gagpo/ALFWorld-v0"),
    "a tracker": (["train", "alfworld-first", "trackers=[wandbb]"], "nearest: wandb"),
    "a window": (["train", "alfworld-first", "context.history=-5"], "history is full or a number of turns"),
    "samples": (["train", "alfworld-first", "rollout.samples=1e8"], "held in memory until the update"),
    "threads": (["train", "alfworld-first", "threads=1024"], "threads=1024 and this machine has"),
    "a trained model": (["train", "alfworld-first", "model=runs/none"], "there is no run and no model runs/none"),
    "a starter": (["train", "alfworld-first", "model=starter:none"], "there is no starter 'none'"),
    "a run to resume": (["train", "--resume", "none"], "none is not a run"),
    "no SFT": (["sft", "alfworld-qwen"], "has no section 'sft'"),
    "a run to evaluate": (["eval", "runs/none"], "there is no run and no model runs/none"),
    "a name to evaluate": (["eval", "none"], "none is no run here, so name the environment"),
    "a folder to evaluate": (["eval", ".", "--env", "gagpo/Math-v0"], "neither a run (no config.yaml) nor a model"),
    "a device of eval": (["eval", "starter:alfworld-agent", "--device", "cuda"], "'cuda' cannot be used here"),
    "a split": (["eval", "random", "--env", "gagpo/Math-v0", "--split", "moon"], "no split 'moon'"),
    "an export": (["export", "none", "out"], "there is no file none"),
    "a plan": (["plan", "alfworld-first", "lamda=1"], "override 'lamda=1': unknown key"),
    "an engine": (["doctor", "--engine", "none"], "there is no engine 'none'"),
    "a comparison": (["compare", "none", "none2"], "none: cannot be read"),
    "a report": (["report", "none"], "none: not a run folder"),
    "a view": (["view", "none"], "none: not a run folder"),
    "a watch": (["watch", "none"], "none: not a run folder"),
    "a world to check": (["check", "gagpo/No-v0"], "known here: gagpo/ALFWorld-v0"),
    "an option": (["train", "--iterations", "3"], "training.iterations=3"),
}


def gagpo(folder, words):
    """Status, modules that were imported, and what was said, of a command in a process and a folder of its own."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN.format(words=words)],
        cwd=folder,
        env={**os.environ, "GAGPO_DATA": str(folder / "data"), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    *said, last = done.stdout.splitlines()
    status, modules = json.loads(last)
    return status, {module.partition(".")[0] for module in modules}, "\n".join(said) + done.stderr


@pytest.mark.parametrize(("words", "said"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_answered_before_anything_is_imported_or_made(tmp_path, words, said):
    if "cuda" in " ".join(words) and pytest.importorskip("torch").cuda.is_available():
        pytest.skip("this machine has one")
    status, modules, printed = gagpo(tmp_path, words)
    assert status == 2 and said in " ".join(printed.split()), printed
    assert not modules & HEAVY
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["eval", "--help"], ["configs"]])
def test_help_imports_next_to_nothing(tmp_path, words):
    status, modules, _ = gagpo(tmp_path, words)
    assert status == 0 and not modules & HEAVY
    if words != ["configs"]:
        assert not modules & {"gymnasium", "numpy"}
