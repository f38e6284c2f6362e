"""Fixtures for the tests of the pool."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_patience_with_the_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gagpo.envs.pool.process_worker.CLOSE_SECONDS", 0.3)
