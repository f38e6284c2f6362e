"""``gagpo/WebShopBrowser-v0``: the same tasks, actions and observations in a real browser.

Every observation, label, address and score is read from the page that Chromium shows. Only the parts of the reward,
which no page shows, come from :class:`~gagpo.envs.webshop.pages.Shop`.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from gagpo.base.errors import GagpoError, InvalidArgument
from gagpo.envs.base import Kwargs, Outcome
from gagpo.envs.tasks import Task
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.pages import BACK, DONE, INDEX, PageState, Piece, clickables, parse_action, regular_query
from gagpo.envs.webshop.render import ROOT, state_at, text, text_rich
from gagpo.envs.webshop.web.site import Site

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

DEADLINE = 30.0  # seconds for one page

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    # Over a pipe, so that the browser ends with its driver.
    "--remote-debugging-pipe",
    "--window-size=1200,900",
    # Pages contain untrusted text: no other host may be reached.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
_READ = """
const seen = Array.from(document.querySelectorAll('main [data-kind]')).filter(element => element.checkVisibility());
return [location.pathname + location.search,
        seen.map(element => [element.dataset.text ?? element.textContent, element.dataset.kind,
                             element.dataset.group ?? null])];
"""
_NTH = """
return Array.from(document.querySelectorAll('main [data-kind]')).filter(e => e.checkVisibility())[arguments[0]];
"""
_ABOUT_TO_PRESS = """
window.leaving = true;
arguments[0].scrollIntoView({block: 'center'});
const to = arguments[0].closest('a');
return to !== null && to.hash !== '' && to.pathname + to.search === location.pathname + location.search;
"""
_ARRIVED = "return !window.leaving && document.readyState === 'complete';"


class BrowserMissing(GagpoError, RuntimeError):
    """Chromium or chromedriver is not installed."""


def open_browser(profile: Path) -> Chrome:
    """Start a headless Chromium with an empty ``profile``; raises BrowserMissing if it is not installed."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        raise BrowserMissing("Chromium and chromedriver are required: apt-get install chromium chromium-driver")
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = browser
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.ignore_local_proxy_environment_variables()  # the driver listens on this machine
    chrome = Chrome(options=options, service=Service(driver, popen_kw={"preexec_fn": _die_with_parent()}))
    chrome.set_page_load_timeout(DEADLINE)
    chrome.set_script_timeout(DEADLINE)
    return chrome


def _die_with_parent() -> Callable[[], None] | None:
    """The first call of a child process, so that it is killed when this process ends (Linux only)."""
    if not sys.platform.startswith("linux"):
        return None
    control = ctypes.CDLL(None, use_errno=True).prctl
    return lambda: control(_DEATH_SIGNAL, signal.SIGKILL)


def _answers(browser: Chrome) -> bool:
    try:
        return bool(browser.current_url)
    except Exception:  # a dead browser or driver can raise anything
        return False


class WebShopBrowserEnv(WebShopEnv):
    """:class:`~gagpo.envs.webshop.env.WebShopEnv` in headless Chromium, by Selenium; takes the same arguments.

    The environment serves the site on a free port of this machine. :meth:`close` ends the browser. A page that does
    not load within 30 seconds raises TimeoutError. After a crash of the browser, ``reset`` starts another. States
    cannot be restored; use ``gagpo/WebShop-v0`` for that.
    """

    can_restore: bool = False

    def __init__(self, split: str = "train", max_turns: int = 15, **options: Any):
        self._site: Site | None = None
        self._browser: Chrome | None = None
        self._profile: str | None = None
        if options.get("exact"):
            raise InvalidArgument("exact=True is not supported in a browser: use gagpo/WebShop-v0")
        super().__init__(split, max_turns, **options)
        self._pieces: tuple[Piece, ...] = ()
        self._path = ""

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        return False

    def begin(self, task: Task) -> Outcome:
        if self._browser is not None and not _answers(self._browser):
            self.close()
        browser = self._started()
        assert self._site is not None
        start = self.shop.start(task.id)
        browser.get(f"{self._site.address}{ROOT}/{start.task}")
        return self._look()

    def act(self, action: str) -> Outcome:
        name, argument = parse_action(action) or ("", "")
        if name == "search":
            self._search(regular_query(argument) or " ")  # an empty form is not sent
        elif name == "click" and (number := self._find(argument)) is not None:
            self._press(number)
        else:
            return self._look(valid=False)
        return self._look()

    def close(self) -> None:
        """Quit the browser and stop the site; safe to call twice."""
        try:
            if self._browser is not None:
                # A crashed browser cannot quit; its driver is stopped in any case.
                with contextlib.suppress(Exception):
                    self._browser.quit()
                self._browser.service.stop()
        finally:
            self._browser = None
            if self._site is not None:
                self._site.close()
                self._site = None
            if self._profile is not None:
                shutil.rmtree(self._profile, ignore_errors=True)
                self._profile = None

    def _started(self) -> Chrome:
        if self._browser is None:
            self._site = Site(self.shop)
            self._profile = tempfile.mkdtemp(prefix="webshop-browser-")
            try:
                self._browser = open_browser(Path(self._profile))
            except BaseException:
                self.close()
                raise
        return self._browser

    def _find(self, label: str) -> int | None:
        """The index of the piece with this label."""
        return clickables(self._pieces).get(label.lower())

    def _search(self, words: str) -> None:
        if not any(piece.kind == "search" for piece in self._pieces):
            number = self._find(BACK)
            assert number is not None, "every page except the last links to the search"
            self._press(number)
            self._look()
        field = self._started().find_element("css selector", "main input[name=q]")
        # Typing key by key cannot enter every character of a query.
        self._started().execute_script("arguments[0].value = arguments[1];", field, words)
        self._press(next(n for n, piece in enumerate(self._pieces) if piece.kind == "search"))

    def _press(self, number: int) -> None:
        """Click the ``number``-th visible piece of the page and wait for the next page."""
        browser = self._started()
        element = browser.execute_script(_NTH, number)
        # A click returns before the browser leaves the page; the mark is gone once another document is loaded.
        stays = browser.execute_script(_ABOUT_TO_PRESS, element)
        element.click()
        if stays:  # an option chosen before: only the fragment of the address differs
            return
        deadline = time.monotonic() + DEADLINE
        while not browser.execute_script(_ARRIVED):
            if time.monotonic() > deadline:
                raise TimeoutError(f"no page within {DEADLINE:g} s after pressing {self._pieces[number].text!r}")
            time.sleep(0.005)

    def _look(self, valid: bool = True) -> Outcome:
        """Read the page that the browser shows."""
        self._path, pieces = self._started().execute_script(_READ)
        self._pieces = tuple(Piece(*piece) for piece in pieces)
        self.state = self._state()
        outcome = self.outcome_of(self.shop.page(self.state), self._observed(), valid)
        search_bar = any(piece.kind == "search" for piece in self._pieces)
        outcome.admissible_actions = self.offered(search_bar, clickables(self._pieces))
        outcome.state = self._path
        outcome.extras["has_search_bar"] = search_bar
        if self.state.kind == DONE:
            outcome.reward = float(self._pieces[-1].text)
            outcome.success = outcome.reward == 1.0
        return outcome

    def _state(self) -> PageState:
        parts = urlsplit(self._path)
        task, _, kind = parts.path.removeprefix(f"{ROOT}/").partition("/")
        return state_at(self.shop, unquote(task), kind or INDEX, parts.query)

    def _observed(self) -> str:
        if self.mode == "text":
            return text(self._pieces)
        if self.mode == "text_rich":
            return text_rich(self._pieces)
        if self.mode == "url":
            return self._path
        # A browser does not show the document that it received, so it is fetched again.
        assert self._site is not None
        connection = http.client.HTTPConnection(urlsplit(self._site.address).netloc, timeout=DEADLINE)
        try:
            connection.request("GET", self._path)
            return connection.getresponse().read().decode()
        finally:
            connection.close()
