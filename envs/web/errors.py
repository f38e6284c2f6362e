"""What can go wrong with a browser."""

from __future__ import annotations

from gagpo.base.errors import GagpoError, MissingPackage


class BrowserMissing(MissingPackage):
    """Selenium, Chromium or its driver is not installed."""


class BrowserLost(GagpoError, RuntimeError):
    """The browser or its driver ended, or does not start."""


class PageHung(GagpoError, TimeoutError):
    """The page did not answer in time, and its browser was ended."""


class PageBroken(GagpoError, RuntimeError):
    """The page broke the scripts that read it, for example by replacing a function of the language."""


class Navigated(Exception):
    """The page was left while a script ran."""
