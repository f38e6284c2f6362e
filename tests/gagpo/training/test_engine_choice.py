"""A run names its engine, built-in or external."""

import pytest

from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train


@pytest.mark.parametrize("deterministic", [True, False])
def test_an_engine_outside_the_project_plays_a_whole_run(corridor, outside, tmp_path, deterministic):
    changes = {"iterations": 1}
    config = corridor(
        training=changes, rollout={"deterministic": deterministic}, evaluation={"tasks": 1, "before": False}
    )
    settings = load(config, ["engine.name=elsewhere:Constant", "engine.options.token=7"])
    folder = RunFolder.create(tmp_path / "run", settings)
    train(folder, quiet=True)
    (row,) = folder.metrics()
    assert row["response_tokens"] == 1.0


def test_the_settings_check_the_name(corridor):
    with pytest.raises(ValueError, match=r"engine: there is no engine 'vlm'; nearest: vllm"):
        load(corridor(), ["engine=vlm"])
