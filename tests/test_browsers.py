"""The browser of the tests of pages."""

import tempfile
from pathlib import Path

import psutil
import pytest

from tests.browsers import chromium

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("killed", [False, True])
def test_a_browser_leaves_nothing_in_the_temporary_folder(monkeypatch, killed):
    with tempfile.TemporaryDirectory(prefix="t") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        with chromium() as browser:
            browser.get("data:text/html,<title>a</title>")
            assert browser.title == "a" and list(Path(folder).iterdir())
            if killed:
                psutil.Process(browser.capabilities["goog:processID"]).kill()
        assert not list(Path(folder).iterdir())
