"""Browsers of another machine: a second chromedriver stands for a node of a Selenium Grid."""

from __future__ import annotations

import re
import subprocess
import time

import psutil
import pytest

from gagpo.envs.pool import WorkerPool
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.env import WebEnv
from gagpo.envs.web.errors import BrowserLost, PageHung
from gagpo.envs.web.server import PageResponse
from tests.envs.web.conftest import needs_browser
from tests.rejections import rejects

pytestmark = needs_browser


def opened(browser, pages):
    browser.open("/", pages)
    return browser.page.text("full", 100)


class Node:
    """A chromedriver that listens at a port; it may be killed and started again there."""

    def __init__(self):
        self.process = None
        self.start(0)

    def start(self, port):
        self.process = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.PIPE, text=True)
        self.port = next(
            int(m[1]) for line in self.process.stdout if (m := re.search(r"successfully on port (\d+)", line))
        )

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}"

    def children(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def kill(self):
        children = self.children()
        self.process.kill()
        self.process.wait()
        for child in children:
            child.kill()


@pytest.fixture
def node():
    node = Node()
    yield node
    node.kill()


def test_a_browser_of_a_grid_is_used_and_given_back(node):
    browser = Browser(grid=node.address)
    try:
        browser.open("/", lambda request: PageResponse(b"<button onclick='this.textContent = 1'>a</button>"))
        assert browser.page.text("full", 100) == '[1] button "a"'
        assert node.children()
    finally:
        browser.close()
    assert not psutil.wait_procs(node.children(), timeout=10)[1]


def test_a_grid_that_is_not_there_is_an_error():
    with rejects(BrowserLost, "http://127.0.0.1:9"):
        Browser(timeout=2.0, grid="http://127.0.0.1:9").open("/", lambda request: PageResponse(b""))


@pytest.mark.slow
def test_a_lost_node_costs_its_episodes_only(node):
    kwargs = {"tasks": ["click-test"], "unseen": [], "grid": node.address, "timeout": 5.0}
    with WorkerPool("gagpo/Web-v0", kwargs, workers=1, max_restarts=3) as pool:
        pool.reset(0, "click-test.000000", seed=0)
        (event,) = pool.wait()
        assert event.kind == "reset"
        port = node.port
        node.kill()
        node.start(port)
        pool.step(0, "click[1]")
        (event,) = pool.wait()
        assert event.kind == "restarted"
        pool.step(0, "click[1]")
        (event,) = pool.wait()
        assert (event.kind, event.reward, event.info["success"]) == ("step", 1.0, True)


@pytest.mark.slow
def test_a_page_that_hangs_on_a_grid_is_left_at_the_deadline(node):
    browser = Browser(timeout=2.0, grid=node.address)
    try:
        browser.open("/", lambda request: PageResponse(b"<button onclick='for (;;) ;'>a</button>"))
        begun = time.monotonic()
        with pytest.raises(PageHung):
            browser.evaluate("document.querySelector('button').click()")
        assert time.monotonic() - begun < 10
        assert opened(browser, lambda request: PageResponse(b"hello")) == "hello"
    finally:
        browser.close()


def test_the_environment_takes_a_grid_without_a_local_browser(node, monkeypatch):
    monkeypatch.setattr("gagpo.envs.web.driver.shutil.which", lambda name: None)
    env = WebEnv(tasks=["click-test"], unseen=[], grid=node.address)
    try:
        assert '[1] button "Click Me!"' in env.reset()[0]
    finally:
        env.close()
