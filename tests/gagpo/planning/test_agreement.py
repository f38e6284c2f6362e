"""A plan refuses what training refuses."""

import pytest
from typer.testing import CliRunner

from gagpo.cli.main import app
from gagpo.settings import SettingsError


def said(*words):
    result = CliRunner().invoke(app, ["plan", *words])
    return result, str(result.exception or "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["processes=3", "rollout.tasks=16"], r"rollout.tasks=16 cannot be divided over 3 processes"),
        (["processes=2", "device=cuda:1"], r"device=cuda:1 names one GPU for 2 processes"),
        (["rollout.max_tokens=32768"], r"leaves no room for a prompt in the context"),
    ],
)
def test_settings_that_train_refuses_are_refused(words, error):
    result, message = said("alfworld-qwen", *words)
    assert isinstance(result.exception, SettingsError) and error in message


def test_gpus_without_a_group_each_are_refused():
    result, message = said("--nodes", "4", "--gpus", "8")
    assert isinstance(result.exception, SettingsError) and "rollout.tasks=16 cannot be divided over 32" in message


def test_an_adapter_of_an_adapter_is_refused(corridor, tmp_path):
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text("{}")
    result, message = said(str(corridor(model=str(folder))), "lora.rank=8")
    assert isinstance(result.exception, SettingsError) and "is an adapter already" in message


def test_a_cluster_needs_no_config_and_no_download():
    result, message = said("--nodes", "2", "--gpus", "8", "model=Qwen/Qwen2.5-7B-Instruct")
    assert result.exit_code == 0, message
    for text in (
        "2 x 8 GPUs",
        "a machine receives",
        "time of an iteration:",
        "bound by: forward and backward",
        "80 GB",
    ):
        assert text in result.output, text
    assert "machine's memory for 8 processes: weight files 15.2 once" in " ".join(result.output.split())


def test_without_config_and_gpus_a_config_is_asked_for():
    result, message = said()
    assert "name a settings file" in message and result.exit_code == 1
    result, message = said("alfworld-8x80gb", "--nodes", "3")
    assert "cannot be divided over 3 nodes" in message
