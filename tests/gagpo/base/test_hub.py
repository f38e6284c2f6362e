"""Where the hub cannot be reached, the cache is asked once, and an error comes within seconds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from gagpo.base import hub
from gagpo.settings import SettingsError
from gagpo.settings.machine import require_model
from tests.rejections import rejects

CLOSED = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def unreachable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", CLOSED)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.chdir(tmp_path)


def test_a_closed_port_is_not_reachable() -> None:
    assert not hub.reachable(CLOSED)


def test_a_name_that_is_neither_cached_nor_reachable_is_refused_and_nothing_is_retried(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        require_model("somebody/model")
    assert str(caught.value) == (
        "there is no run or model folder somebody/model; as a hub name, it is not in the cache, and the hub cannot be "
        f"reached (no answer from {CLOSED})"
    )
    assert constants.HF_HUB_OFFLINE is True  # the client asks the cache alone
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_a_cached_model_needs_no_hub(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--somebody--model" / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("a" * 40)
    assert hub.why_unavailable("somebody/model") == ""
    assert "not in the cache" in hub.why_unavailable("somebody/model", "b" * 40)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("data/models/gues", "data/models/guess"), ("data/modles/guess", "data/models/guess"), ("outptu/a", "output/a")],
)
def test_a_mistyped_folder_is_answered_with_near_names(wrong: str, right: str, tmp_path: Path) -> None:
    (tmp_path / right).mkdir(parents=True)
    with rejects(SettingsError, advice=right):
        require_model(wrong)
