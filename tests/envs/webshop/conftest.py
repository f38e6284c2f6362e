"""Where the shop's data lie for the tests that open it by name."""

import pytest

from tests.envs.webshop.shelf import shared_root


@pytest.fixture
def shop_data(monkeypatch):
    monkeypatch.setenv("GAGPO_DATA", str(shared_root()))
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
