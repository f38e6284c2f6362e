"""One browser with one window: opens pages, carries out commands, reads what is shown."""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from importlib.resources import files
from typing import Any

from gagpo.base.errors import InvalidArgument
from gagpo.envs.tools import CallError
from gagpo.envs.web import driver as drivers
from gagpo.envs.web.actions import KEYS, VIRTUAL_KEYS, Command
from gagpo.envs.web.devtools import DevTools, Sent
from gagpo.envs.web.errors import BrowserLost, Navigated, PageBroken, PageHung
from gagpo.envs.web.page import WebPage
from gagpo.envs.web.server import PageResponse, Pages, PageServer

THINKING = 1_000
"""Milliseconds on the page's own clock that pass with every action."""

WINDOW = 1_000, 700
"""Width and height of what is shown at once, in pixels."""

MOST_BROWSERS = 4
"""Browsers that one thread runs for one set of settings: more episodes take turns, see :class:`Browser`."""

_MOST_VISITS = 3  # of a page that is opened again, because the one before has stored something when it was left
_MOST_KEYS = 100  # letters of a text that are typed key by key: two commands each
_MOST_HISTORY = 25  # pages; a browser remembers 50
_SCRIPTS = ("clock", "guards", "storage", "repeat", "reader")
_WHY = {
    "gone": "[{0}] is not on this page",
    "option": "[{0}] is an option of a list: write select[{0}]",
    "no option": "[{0}] is not an option of a list: write click[{0}]",
    "hidden": "[{0}] cannot be seen",
    "covered": "[{0}] is covered by something else",
    "disabled": "[{0}] is disabled",
    "read-only": "[{0}] cannot be changed",
    "no field": "[{0}] is not a field to type into",
}


@functools.cache
def _preparation() -> str:
    """The script that runs in every document before its own."""
    folder = files("gagpo.envs.web") / "scripts"
    scripts = [(folder / f"{name}.js").read_text(encoding="utf-8") for name in _SCRIPTS]
    calls = "".join(f"{name}(gagpo); " for name in _SCRIPTS)
    style = (
        "const sheet = new CSSStyleSheet(); sheet.replaceSync('*, *::before, *::after {transition: none !important; "
        "animation-duration: 0s !important; animation-delay: 0s !important; animation-iteration-count: 1 !important; "
        "scroll-behavior: auto !important; caret-color: transparent !important}'); "
        "document.adoptedStyleSheets = [sheet];"
    )
    define = "Object.defineProperty(window, '__gagpo', {value: Object.freeze(gagpo)});"
    body = "\n".join(scripts)
    return f"(() => {{ if (window.__gagpo) return; {body}\nconst gagpo = {{}}; {calls}{define} {style} }})()"


def _key_events(key: str) -> list[Sent]:
    """The commands that press and release a key."""
    name, code, text = KEYS.get(key, (key, VIRTUAL_KEYS.get(key.lower(), 0), key))
    event = {"key": name, "code": key, "windowsVirtualKeyCode": code, "nativeVirtualKeyCode": code}
    down = {"type": "keyDown" if text else "rawKeyDown", "text": text, **event}
    return [("Input.dispatchKeyEvent", down), ("Input.dispatchKeyEvent", {"type": "keyUp", **event})]


class Browser:
    """A browser that is started by the first :meth:`open`, and again after it was lost.

    timeout: seconds that a page may take to answer; then the browser is ended.
    grid: address of a Selenium Grid; None for a browser of this machine.
    host: address at which the pages are served, which the browser must be able to reach.

    A thread runs at most :data:`MOST_BROWSERS`. The next to open a page takes over the one that was used least
    recently, whose former owner is then ``parked``: it has to open its page and repeat its commands before it goes on.
    Pages are exact, so nothing changes but the time that this takes.

    ``page`` is what was read last, ``last`` the last command that was carried out on this visit, ``typed`` what was
    typed on it: texts, and each letter that was pressed.

    All methods that use a page can raise:
        BrowserLost: the browser ended.
        PageHung: the page did not answer in time.
        PageBroken: the page broke the scripts that read it.
    """

    def __init__(self, timeout: float = 20.0, grid: str | None = None, host: str = "127.0.0.1"):
        if not 1.0 <= timeout <= 600.0:
            raise InvalidArgument(f"timeout must be between 1 and 600 seconds (got {timeout:g})", key="timeout")
        self.timeout = timeout
        self.grid = grid
        self.host = host
        self.page = WebPage("", (), (), (False, False), "")
        self.last: Command | None = None
        self.typed: list[str] = []
        self.parked = False
        self._started: drivers.StartedBrowser | None = None
        self._server: PageServer | None = None
        self._ignored = ""
        self._probe = "null"
        self._visit: tuple[object, ...] | None = None  # what is open, if it can be used for another episode
        self._fixed = ""
        self._thread = threading.get_ident()
        self._first = 0  # place of this visit's first page in the history
        self._failed = False  # this visit is in an unknown state
        self._stored = False  # a page of this visit has stored something

    # Pages ------------------------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where the pages are served; the start of every address that can be reached."""
        if self._server is None:
            try:
                self._server = PageServer(self.host)
            except OSError as error:
                reason = f"host must be an address of this machine (got {self.host!r:.80}): {error.strerror or error}"
                raise InvalidArgument(reason) from None
        return f"http://{self.host}:{self._server.port}"

    def open(
        self, path: str, pages: Pages, ignored: str = "", prepare: str = "", probe: str = "null", fixed: str = ""
    ) -> Any:
        """Show ``path`` of ``pages`` as a new visitor, without cookies, storage or history.

        ignored: a CSS selector of elements that do not belong to the page.
        prepare: a JavaScript expression to evaluate once before the page is read; returns its value.
        probe: a JavaScript expression to evaluate with every reading; its value is ``page.probe``.
        fixed: a JavaScript expression that begins an episode which is always the same, in a page that may be used for
            several. The page is then not loaded again if this leads to the same state as it did after loading.
        """
        if fixed and self._visit == (path, pages, ignored, probe) and not self.parked:
            value = self._repeat(prepare, fixed)
            if value is not None:
                return value[0]
        self._visit = None
        if self._started is None:
            self._take_over()
        self._touch()
        address = self.address
        assert self._server is not None
        self.parked = False
        self._ignored = ignored
        self._probe = probe
        self.last = None
        self.typed = []
        for _ in range(_MOST_VISITS):
            if self._started is not None and (self._stored or self._failed):
                self._forget()
            if self._started is None:
                self._start()
            if self.page.place > _MOST_HISTORY:
                self.command("Page.resetNavigationHistory")
            self._server.pages = pages
            self._failed = True  # until the page has been read
            self._stored = False
            self._navigate(address + path)
            value = self._prepare(prepare, fixed)
            self._first = self.read().place
            if not self.page.unclean:  # by the page before, which may write while it is left
                self._visit = (path, pages, ignored, probe)
                return value
            self._failed = True
        self._drop()
        raise BrowserLost("the browser keeps what earlier pages have stored")

    def _prepare(self, prepare: str, fixed: str) -> Any:
        """Evaluate ``prepare`` in a page that was loaded, after the fixed episode if there is one."""
        if not prepare:
            return None
        keep = ""
        if fixed:
            self.evaluate("__gagpo.loaded()")
            names = self.command("Runtime.globalLexicalScopeNames")["names"]
            self._fixed = f"() => ({fixed}), {json.dumps(names)}, {json.dumps(self._ignored)}"
            keep = f"__gagpo.keep({self._fixed}), "
        return self.evaluate(f"__gagpo.loaded().then(() => ({keep}{prepare}))")

    def _repeat(self, prepare: str, fixed: str) -> tuple[Any] | None:
        """Begin an episode in the page of the last one, and read it; None if it has to be loaded again."""
        if self._started is None or self._stored or self._failed or self.page.place > _MOST_HISTORY:
            return None
        self._touch()
        self.last = None
        self.typed = []
        self._failed = True  # until the page has been read
        try:
            value = self._evaluate(f"__gagpo.again({self._fixed}) ? [{prepare}] : null")
            if value is None:
                return None
            self._first = self.read().place
        except (Navigated, PageBroken, PageHung):
            return None
        finally:
            self._failed = self._started is None
        return (value[0],)

    def _forget(self) -> None:
        """Remove what earlier pages have stored; where something is left, end the browser.

        Which data ``Storage.clearDataForOrigin`` removes differs between versions of the browser, so an empty page of
        the same address removes the rest, and looks whether anything is left.
        """
        assert self._server is not None
        self._server.pages = lambda request: PageResponse()
        self.command("Network.clearBrowserCookies")
        self.command("Storage.clearDataForOrigin", origin=self.address, storageTypes="all")
        self._navigate(f"{self.address}/")
        if self.evaluate("__gagpo.loaded().then(() => __gagpo.forget())"):
            self._drop()
        else:
            self.command("Page.resetNavigationHistory")

    def read(self) -> WebPage:
        """Wait until the page is ready, and read it."""
        deadline = time.monotonic() + self.timeout
        look = f"__gagpo.look({THINKING}, {json.dumps(self._ignored)})"
        expression = f"{look}.then((page) => ({{...page, probe: ({self._probe})}}))"
        while True:
            try:
                self.page = WebPage.of(self._evaluate(expression))
                self._failed = False
                self._stored = self._stored or self.page.stored
                return self.page
            except Navigated:
                if time.monotonic() > deadline:
                    raise self._hung() from None

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, as plain data; a promise is awaited."""
        try:
            return self._evaluate(expression)
        except Navigated:
            return self._evaluate(expression)

    def screenshot(self) -> str:
        """The part of the window with something in it, as a PNG in base64."""
        width, height = self.evaluate(f"__gagpo.extent({json.dumps(self._ignored)})")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        return str(self.command("Page.captureScreenshot", format="png", clip=clip)["data"])

    # Commands ---------------------------------------------------------------------------------------------------------

    def do(self, command: Command) -> WebPage:
        """Carry out a command as a person would, and read what is shown then.

        Raises:
            CallError: it cannot be carried out here; the message says why.
        """
        try:
            if command.name == "click":
                self._click(command.number)
            elif command.name == "type":
                self._type(command.number, command.text)
            elif command.name == "select":
                self._require(command.number)
                self._refuse(self._evaluate(f"__gagpo.choose({command.number})"), command.number)
            elif command.name == "press":
                self._press(command.text)
            elif command.name == "scroll":
                if not self._evaluate(f"__gagpo.scroll({1 if command.text == 'down' else -1})"):
                    raise CallError(f"the page cannot be scrolled {command.text}")
            else:
                self._back()
        except Navigated:
            pass  # the page went on while the command was carried out
        self.last = command
        if command.name == "type" or len(command.text) == 1:
            self.typed.append(command.text)
        return self.read()

    def _click(self, number: int) -> None:
        self._press_at(self._aim(f"__gagpo.aim({number})", number))

    def _type(self, number: int, text: str) -> None:
        spot = self._aim(f"__gagpo.aimToType({number}, {json.dumps(text)})", number)
        if not spot["focused"] and not spot["formatted"]:
            self._press_at(spot)
        self._evaluate(f"__gagpo.enter({number}, {json.dumps(text)})")
        if spot["formatted"]:
            return
        if not text:
            self._press("Delete")
            return
        self._write(text if spot["lines"] else text.replace("\n", ""))

    def _aim(self, expression: str, number: int) -> dict[str, Any]:
        self._require(number)
        spot: dict[str, Any] = self._evaluate(expression)
        self._refuse(spot.get("why", ""), number)
        return spot

    def _press_at(self, spot: dict[str, Any]) -> None:
        # Pressing at another place also moves the pointer there. A movement alone would wait for a frame.
        event = {"x": spot["x"], "y": spot["y"], "button": "left", "clickCount": 1}
        self.command("Input.dispatchMouseEvent", type="mousePressed", **event)
        self.command("Input.dispatchMouseEvent", type="mouseReleased", **event)

    def _write(self, text: str) -> None:
        """Type a text key by key, since pages listen to keys; the end of a long one, whose start is pasted."""
        pasted = text[:-_MOST_KEYS]
        commands: list[Sent] = [("Input.insertText", {"text": pasted})] if pasted else []
        for letter in text[-_MOST_KEYS:]:
            if letter in "\n\t":  # as keys they would send a form or leave the field
                commands.append(("Input.insertText", {"text": letter}))
            else:
                commands += _key_events(letter)
        self._send_all(commands)

    def _press(self, key: str) -> None:
        self._send_all(_key_events(key))

    def _back(self) -> None:
        history = self.command("Page.getNavigationHistory")
        current = history["currentIndex"]
        if self.page.place <= self._first or current < 1:
            raise CallError("there is no page to go back to")
        self.command("Page.navigateToHistoryEntry", entryId=history["entries"][current - 1]["id"])
        self._await_departure(self.page.place)

    def _await_departure(self, place: int) -> None:
        """Wait for another page: going back is begun by the browser, so the page itself does not know of it.

        place: of the page that is left; its address may be that of the page before it.
        """
        deadline = time.monotonic() + self.timeout
        while time.monotonic() < deadline:
            try:
                if self._evaluate("window.navigation?.currentEntry?.index ?? 0") != place:
                    return
            except Navigated:
                return

    def _require(self, number: int) -> None:
        if self.page.line(number) is None:
            self._refuse("gone", number)

    def _refuse(self, why: str, number: int) -> None:
        if why:
            raise CallError(_WHY.get(why, f"[{{0}}] takes {why.removeprefix('no ')}s only").format(number))

    # The driver -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the browser and stop serving; safe to call twice."""
        self._drop()
        if self._server is not None:
            self._server.close()
            self._server = None

    def command(self, name: str, **parameters: Any) -> Any:
        """Send a command of the DevTools protocol."""
        return self._ask(lambda devtools: devtools.command(name, parameters))

    def _ask(self, send: Callable[[DevTools], Any]) -> Any:
        if self._started is None:
            raise BrowserLost("the browser ended")
        try:
            return send(self._started.devtools)
        except TimeoutError:
            raise self._hung() from None
        except BrowserLost:
            self._drop()
            raise

    def _send_all(self, commands: list[Sent]) -> None:
        """Send commands one after the other, without waiting for the answer of each."""
        self._ask(lambda devtools: devtools.commands(commands))

    def _navigate(self, address: str) -> None:
        failure = self.command("Page.navigate", url=address).get("errorText", "")
        if failure:
            self._drop()
            raise BrowserLost(f"the browser cannot open {address}: {failure:.200}")

    def _evaluate(self, expression: str) -> Any:
        answer = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            text = details.get("exception", {}).get("description") or details.get("text", "")
            if "__gagpo" in text or "is not defined" in text:
                raise Navigated(text)  # a document that is not ready yet
            self._failed = True
            raise PageBroken(f"the page {self._shown_path()} breaks the scripts that read it: {text[:200]}")
        return answer["result"].get("value")

    def _start(self) -> None:
        host, _, port = self.address.rpartition(":")
        reachable = f"{host.removeprefix('http://')}:{port}"
        self._started = drivers.start(reachable, self.timeout, self.grid)
        self.command("Page.addScriptToEvaluateOnNewDocument", source=_preparation())
        # What is in view must not depend on the frame that a version of the browser draws around its window.
        size = {"width": WINDOW[0], "height": WINDOW[1], "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        self.command("Emulation.setTimezoneOverride", timezoneId="UTC")
        self.command("Emulation.setFocusEmulationEnabled", enabled=True)
        self.command("Page.setInterceptFileChooserDialog", enabled=True)  # nothing can be uploaded

    def _touch(self) -> None:
        """Make this the browser that was used last."""
        if self in _RUNNING:
            _RUNNING.remove(self)
        _RUNNING.append(self)

    def _take_over(self) -> None:
        """Take the process of another browser if there are as many as there may be."""

        def likeness(browser: Browser) -> tuple[Any, ...]:
            return browser._thread, browser.timeout, browser.grid, browser.host

        self._thread = threading.get_ident()
        running = [browser for browser in _RUNNING if browser._started and likeness(browser) == likeness(self)]
        if len(running) < MOST_BROWSERS:
            return
        other = running[0]
        _RUNNING.remove(other)
        if self._server is not None:
            self._server.close()
        self._started = other._started
        self._server = other._server
        other._started = None
        other._server = None
        other.parked = True
        self._failed = True

    def _drop(self) -> None:
        if self in _RUNNING:
            _RUNNING.remove(self)
        started = self._started
        self._started = None
        if started is not None:
            started.end()

    def _hung(self) -> PageHung:
        path = self._shown_path()
        self._drop()
        return PageHung(f"the page {path} did not answer in {self.timeout:g} s")

    def _shown_path(self) -> str:
        """The path of the page that is shown, which may not have been read yet."""
        address = self._started.devtools.address() if self._started is not None else ""
        path = address.removeprefix(self.address) if address.startswith(self.address) else self.page.path
        return f"{path or '/':.200}"


_RUNNING: list[Browser] = []  # the one used last at the end

os.register_at_fork(after_in_child=_RUNNING.clear)  # a fork owns none of them
