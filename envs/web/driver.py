"""Starts a browser through Selenium: on this machine, or on a Selenium Grid."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from gagpo.base.child import Child, ChildFailed
from gagpo.base.errors import InvalidArgument
from gagpo.envs.web.devtools import DevTools, DriverDevTools, SocketDevTools
from gagpo.envs.web.errors import BrowserLost, BrowserMissing
from gagpo.envs.web.supervisor import BROWSER

if TYPE_CHECKING:
    from selenium.webdriver.remote.webdriver import WebDriver

OLDEST = 121
"""The first version of Chromium whose pages are read right: older ones cannot tell what is transparent."""

START_SECONDS = 60.0
END_SECONDS = 8.0
MARGIN_SECONDS = 2.0  # the driver's own deadline comes first

_OFF = (
    "BackForwardCache",  # a page that is left ends, so that going back loads it again
    "DeferRendererTasksAfterInput",  # else a page waits for its next frame after every click
    "Translate",
    "OptimizationHints",
    "MediaRouter",
)
_FLAGS = (
    "--headless=new",
    "--app=data:,",  # a window without tabs and address, which would be drawn anew for every page
    "--no-sandbox",  # a sandbox needs rights that containers lack; only local pages are shown
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--disable-popup-blocking",
    "--block-new-web-contents",
    f"--disable-features={','.join(_OFF)}",
    "--no-first-run",
    "--no-default-browser-check",
    "--mute-audio",
    "--lang=en-US",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
    "--window-size=1000,800",
)


@dataclass(frozen=True)
class StartedBrowser:
    """A browser that runs.

    driver: started it.
    devtools: takes commands for its page.
    end: ends it; called once.
    """

    driver: WebDriver
    devtools: DevTools
    end: Callable[[], None]


def require_selenium() -> None:
    """Raises BrowserMissing if Selenium is not installed."""
    try:
        import selenium  # noqa: F401
    except ImportError:
        raise BrowserMissing(
            "gagpo/Web-v0 needs Selenium", advice="pip install -c constraints.txt -e '.[web]'"
        ) from None


def find_programs() -> tuple[str, str]:
    """The paths of Chromium and chromedriver; raises BrowserMissing."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((path for path in map(shutil.which, names) if path), None)
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        missing = "Chromium" if not browser else "chromedriver"
        raise BrowserMissing(f"gagpo/Web-v0 needs {missing}", advice="apt-get install chromium chromium-driver")
    return browser, driver


def require_version(version: str, where: str) -> None:
    """Raises BrowserMissing for a Chromium that is older than :data:`OLDEST`; ``version`` may be any text with it."""
    major = re.search(r"\d+", version)
    if major is None or int(major[0]) < OLDEST:
        got = " ".join(version.split())[:80] or "no version"
        raise BrowserMissing(
            f"gagpo/Web-v0 needs Chromium {OLDEST} or newer (got {got} of {where})",
            advice="apt-get install chromium chromium-driver",
        )


def installed_version() -> str:
    """The version of Chromium on this machine; raises BrowserMissing if there is none or it is too old."""
    browser, _ = find_programs()
    try:
        printed = subprocess.run([browser, "--version"], capture_output=True, text=True, timeout=START_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrowserMissing(f"does not start: {_short(error)}", where=browser) from None
    require_version(printed.stdout, browser)
    return " ".join(printed.stdout.split())


def check_grid(grid: str) -> str:
    """The address of a grid; raises InvalidArgument."""
    try:
        address = urlsplit(grid)
        valid = address.scheme in ("http", "https") and bool(address.hostname) and (address.port or 1) > 0
    except ValueError:
        valid = False
    if not valid:
        raise InvalidArgument(f"grid must be an address such as http://HOST:4444 (got {grid!r:.80})", key="grid")
    return grid


def start(reachable: str, timeout: float, grid: str | None) -> StartedBrowser:
    """Start a browser that can reach ``reachable`` (HOST:PORT) only.

    timeout: seconds that one command may take.
    grid: address of a Selenium Grid; None for this machine.

    Raises:
        BrowserMissing: a program or package is not installed.
        BrowserLost: the browser does not start.
    """
    require_selenium()
    if grid is not None:
        driver = _session(check_grid(grid), _options(reachable), timeout)
        try:
            require_version(str(driver.capabilities.get("browserVersion", "")), f"the grid {grid}")
        except BrowserMissing:
            _quit(driver)
            raise
        return StartedBrowser(driver, DriverDevTools(driver), lambda: _quit(driver))
    browser, program = find_programs()
    supervisor = Child(
        "gagpo.envs.web.supervisor:serve",
        program,
        browser,
        name="the browser's driver",
        bare=("gagpo", "gagpo.envs"),
        start_timeout=START_SECONDS,
    )
    try:
        port, folder = supervisor.ask("port", START_SECONDS)
        if not port:
            raise BrowserLost(str(folder))
        starter = Path(folder, BROWSER)
        direct = os.access(starter, os.X_OK)  # not where programs in temporary folders are forbidden
        options = _options(reachable)
        options.binary_location = str(starter) if direct else browser
        options.add_argument(f"--user-data-dir={folder}/profile")
        options.add_argument("--remote-debugging-pipe")  # the driver's: the browser ends with it
        driver = _session(f"http://127.0.0.1:{port}", options, timeout)
        require_version(str(driver.capabilities.get("browserVersion", "")), browser)
        devtools = _connect(driver, Path(folder, "profile"), timeout) if direct else DriverDevTools(driver)
    except ChildFailed as error:
        raise BrowserLost(error) from None
    except BaseException:
        supervisor.end(END_SECONDS)
        raise

    def end() -> None:
        devtools.close()
        supervisor.end(END_SECONDS)

    return StartedBrowser(driver, devtools, end)


def _connect(driver: WebDriver, profile: Path, timeout: float) -> SocketDevTools:
    """A connection to the page of a browser of this machine, which writes its port into its profile."""
    from selenium.common.exceptions import WebDriverException
    from urllib3.exceptions import HTTPError

    try:
        port = int((profile / "DevToolsActivePort").read_text(encoding="ascii").split()[0])
        return SocketDevTools(port, driver.current_window_handle, timeout)
    except (ValueError, IndexError, WebDriverException, HTTPError, OSError) as error:
        raise BrowserLost(f"the browser has no debugging port: {_short(error)}") from None


def _options(reachable: str) -> Any:
    from selenium.webdriver import ChromeOptions

    options = ChromeOptions()
    host = reachable.rpartition(":")[0]
    for flag in (
        *_FLAGS,
        # Pages are untrusted. Other names do not resolve, and other addresses, loopback included, lead to a proxy
        # that does not exist.
        f"--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE {host}",
        "--proxy-server=http://127.0.0.1:9",
        f"--proxy-bypass-list=<-loopback>;{reachable}",
        "--webrtc-ip-handling-policy=disable_non_proxied_udp",
        "--force-webrtc-ip-handling-policy",
    ):
        options.add_argument(flag)
    options.add_experimental_option(
        "prefs",
        {
            "download_restrictions": 3,  # all
            "profile.default_content_setting_values.automatic_downloads": 2,
            "profile.default_content_setting_values.notifications": 2,
            "profile.default_content_setting_values.geolocation": 2,
            "credentials_enable_service": False,
            "profile.password_manager_enabled": False,
        },
    )
    options.unhandled_prompt_behavior = "accept"
    return options


def _session(address: str, options: Any, timeout: float) -> WebDriver:
    from selenium.common.exceptions import WebDriverException
    from selenium.webdriver import Remote
    from selenium.webdriver.common.proxy import Proxy, ProxyType
    from selenium.webdriver.remote.client_config import ClientConfig
    from urllib3.exceptions import HTTPError

    direct = Proxy(raw={"proxyType": ProxyType.DIRECT})  # the driver listens here: the user's proxy is not for it
    config = ClientConfig(remote_server_addr=address, timeout=int(START_SECONDS), proxy=direct)
    try:
        driver = Remote(command_executor=address, options=options, client_config=config)
        driver.set_page_load_timeout(timeout)
        driver.set_script_timeout(timeout)
    except (WebDriverException, HTTPError, OSError) as error:
        raise BrowserLost(f"no browser starts at {address}: {_short(error)}") from None
    config.timeout = int(timeout + MARGIN_SECONDS)
    return driver


def _quit(driver: WebDriver) -> None:
    """End the session on a grid. A lost node cannot answer, and one whose page hangs not before the page.

    The request goes on in a thread, which nobody waits for longer: a Selenium Grid ends a session that is not used.
    """

    def end() -> None:
        with suppress(Exception):
            driver.quit()

    thread = threading.Thread(target=end, daemon=True)
    thread.start()
    thread.join(MARGIN_SECONDS)


def _short(error: BaseException) -> str:
    return " ".join(str(error).partition("\nStacktrace")[0].split())[:300]
