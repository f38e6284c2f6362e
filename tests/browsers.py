"""Headless Chromium for tests of pages; it leaves nothing behind."""

import os
import shutil
import tempfile
from contextlib import contextmanager

import pytest

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
    "--window-size=1280,900",
)


@contextmanager
def chromium(reachable=""):
    """A browser that reaches no server but ``reachable``, a host.

    Its profile and temporary files are in one folder. In the system's folder, browser and driver would leave some when
    they are ended. The path is short: a socket is put there, whose path may have 107 characters.
    """
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("Chromium is not installed")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as folder:
        options = webdriver.ChromeOptions()
        excluded = f", EXCLUDE {reachable}" if reachable else ""
        for flag in (*FLAGS, f"--user-data-dir={folder}/profile", f"--host-resolver-rules=MAP * ~NOTFOUND{excluded}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = Service(shutil.which("chromedriver"), env={**os.environ, "TMPDIR": folder})
        driver = webdriver.Chrome(options=options, service=service)
        driver.set_page_load_timeout(120)
        driver.set_script_timeout(120)
        try:
            yield driver
        finally:
            driver.quit()
