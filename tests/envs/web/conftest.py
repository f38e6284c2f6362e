"""Chromium, one for each module of tests."""

from __future__ import annotations

import shutil

import pytest

from gagpo.envs.web.browser import Browser
from gagpo.envs.web.server import PageResponse

MISSING = [program for program in ("chromium", "chromedriver") if shutil.which(program) is None]
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(
        bool(MISSING), reason=f"needs {' and '.join(MISSING)}: apt-get install chromium chromium-driver"
    ),
]


@pytest.fixture(scope="module")
def shared_browser():
    browser = Browser(timeout=20.0)
    yield browser
    browser.close()


@pytest.fixture
def show(shared_browser):
    """Opens a page with this body; other paths may have bodies, too. Returns the browser."""

    def open_page(body, **others):
        bodies = {"/": body, **{f"/{name}": text for name, text in others.items()}}

        def pages(request):
            text = bodies.get(request.path)
            if isinstance(text, PageResponse):
                return text
            if callable(text):
                text = text(request)
            return PageResponse(f"<!doctype html><title>t</title><body>{text}".encode(), status=200 if text else 404)

        shared_browser.open("/", pages)
        return shared_browser

    return open_page
