"""Measuring whatever can act, on whatever somebody has."""

from pathlib import Path

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.envs.alfworld.games.folder import NoGames
from gagpo.envs.alfworld.games.generate import generate
from gagpo.eval.models import evaluate


def test_whoever_has_one_split_can_be_measured_on_it(tmp_path: Path) -> None:
    """The released training games are many: to be measured on another split nobody needs them, or waits for them."""
    generate(counts={"train": 0, "valid_unseen": 2}, root=tmp_path, splits=("valid_unseen",))
    played = {"environment": "gagpo/ALFWorld-v0", "kwargs": {"games": str(tmp_path)}, "workers": 1, "quiet": True}
    for split in ("valid_unseen", None):
        result = evaluate("expert", split=split, **played)
        assert (result.successes, result.task_set.split) == (2, "valid_unseen")
    with pytest.raises(NoGames, match="valid_seen"):
        evaluate("expert", split="valid_seen", **played)
    with pytest.raises(InvalidArgument, match="no split 'tset'"):
        evaluate("expert", split="tset", **{**played, "kwargs": {"counts": {"train": 1}}})
