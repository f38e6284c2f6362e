"""Commands of the DevTools protocol: to a browser of this machine directly, to one of a grid through its driver.

A command through chromedriver takes several requests and 5 to 20 ms; the same command over the browser's own websocket
takes less than 1 ms. Selenium starts and ends the browser in both cases.
"""

from __future__ import annotations

import itertools
import json
import socket
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from gagpo.envs.web.errors import BrowserLost, Navigated

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

# What the browser says when the page changed while a script ran.
_NAVIGATED = ("navigated or closed", "context was destroyed", "Cannot find context", "Cannot find default execution")
_SHORT = 200  # characters of the browser's message in an error
_ADDRESS_SECONDS = 2.0
_ENDED = ("Inspector.targetCrashed", "Inspector.detached")


Sent = tuple[str, dict[str, Any]]
"""A command's name and parameters."""


class DevTools(Protocol):
    """A connection to one page."""

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        """Send a command; returns its result.

        Raises:
            Navigated: the page was left while a script ran.
            TimeoutError: no answer came in time.
            BrowserLost: the browser, the page's process or the driver ended.
        """

    def commands(self, commands: Sequence[Sent]) -> None:
        """Send commands that are carried out in order; waits for all of them, and raises as :meth:`command`."""

    def address(self) -> str:
        """The address of the page that is shown, also of one that hangs; empty if the browser does not answer soon."""

    def close(self) -> None:
        """Close the connection; safe to call twice."""


class SocketDevTools:
    """A websocket to the debugging port of a browser of this machine.

    port: of 127.0.0.1.
    target: the page's identifier.
    timeout: seconds that a command may take.

    Raises:
        BrowserLost: the browser does not answer.
    """

    def __init__(self, port: int, target: str, timeout: float):
        from websocket import WebSocketException, create_connection

        self.timeout = timeout
        self._numbers = itertools.count(1)
        address = f"ws://127.0.0.1:{port}/devtools/page/{target}"
        try:
            # A socket of its own ignores the user's proxy, which is not for this machine.
            self._stream = socket.create_connection(("127.0.0.1", port), timeout)
            self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Chromium rejects a connection that names an origin: pages send one, so none can connect.
            self._socket = create_connection(
                address, timeout, socket=self._stream, suppress_origin=True, skip_utf8_validation=True
            )
        except (OSError, WebSocketException) as error:
            raise BrowserLost(f"the browser does not answer at {address}: {error}") from None
        for domain in ("Inspector", "Page"):  # they report crashes and dialogs
            self.command(f"{domain}.enable", {})

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        return self._exchange([(name, parameters)])[0]

    def commands(self, commands: Sequence[Sent]) -> None:
        self._exchange(commands)

    def address(self) -> str:
        # The browser's own process answers, which does not wait for that of the page.
        try:
            (history,) = self._exchange([("Page.getNavigationHistory", {})], min(self.timeout, _ADDRESS_SECONDS))
            return str(history["entries"][history["currentIndex"]]["url"])
        except (TimeoutError, BrowserLost, Navigated, LookupError, TypeError):
            return ""

    def _exchange(self, commands: Sequence[Sent], timeout: float | None = None) -> list[Any]:
        """The results of commands, which are all sent before the first answer is awaited."""
        from websocket import WebSocketException, WebSocketTimeoutException

        deadline = time.monotonic() + (timeout or self.timeout)
        try:
            numbers = [self._send(name, parameters) for name, parameters in commands]
            answers: dict[int, Any] = {}
            while len(answers) < len(numbers):
                answer = self._receive(deadline)
                if answer.get("id") in numbers:
                    answers[answer["id"]] = _result(answer)
                else:
                    self._heed(answer.get("method", ""))
            return [answers[number] for number in numbers]
        except (WebSocketTimeoutException, TimeoutError):
            raise TimeoutError(f"{commands[0][0]} was not answered in {self.timeout:g} s") from None
        except (WebSocketException, OSError, ValueError, KeyError) as error:  # it closed the socket, or makes no sense
            raise BrowserLost(f"the browser ended: {type(error).__name__}") from None

    def close(self) -> None:
        self._stream.close()  # without the closing handshake: the browser may not answer

    def _send(self, name: str, parameters: dict[str, Any]) -> int:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": name, "params": parameters}))
        return number

    def _receive(self, deadline: float) -> dict[str, Any]:
        remaining = deadline - time.monotonic()
        if remaining <= 0:  # a page that sends events for ever
            raise TimeoutError
        self._socket.settimeout(remaining)
        message = json.loads(self._socket.recv())
        if not isinstance(message, dict):
            raise ValueError("a message must be an object")
        return message

    def _heed(self, event: str) -> None:
        """React to an event: a dialog waits for an answer, and a page that crashed never answers."""
        if event == "Page.javascriptDialogOpening":
            # "Leave this page?"; the page's own dialogs are answered by a script, see guards.js.
            self._send("Page.handleJavaScriptDialog", {"accept": True})
        elif event in _ENDED:
            raise BrowserLost("the browser ended: the process of the page crashed")


class DriverDevTools:
    """Commands through the driver, for a browser of a grid: only the driver's address can be reached from here."""

    def __init__(self, driver: WebDriver):
        self._driver = driver

    def command(self, name: str, parameters: dict[str, Any]) -> Any:
        from selenium.common.exceptions import TimeoutException, WebDriverException
        from urllib3.exceptions import HTTPError
        from urllib3.exceptions import TimeoutError as NoAnswer

        try:
            return self._driver.execute("executeCdpCommand", {"cmd": name, "params": parameters})["value"]
        except (TimeoutException, NoAnswer):
            raise TimeoutError(f"{name} was not answered in time") from None
        except WebDriverException as error:
            raise _failure(" ".join(str(error.msg or error).split())) from None
        except (HTTPError, OSError, ValueError, KeyError) as error:  # the driver ended, or answered without sense
            raise BrowserLost(f"the browser's driver does not answer: {type(error).__name__}") from None

    def commands(self, commands: Sequence[Sent]) -> None:
        for name, parameters in commands:
            self.command(name, parameters)

    def address(self) -> str:
        return ""  # the driver would wait for the page

    def close(self) -> None:
        """The driver's connections end with it."""


def _result(answer: dict[str, Any]) -> Any:
    error = answer.get("error")
    if error is None:
        return answer["result"]
    raise _failure(str(error.get("message") if isinstance(error, dict) else error))


def _failure(text: str) -> Exception:
    if any(pattern in text for pattern in _NAVIGATED):
        return Navigated(text)
    return BrowserLost(f"the browser ended: {text[:_SHORT]}")
