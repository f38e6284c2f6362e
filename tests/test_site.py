"""The site: built without a warning, requests nothing, and can be searched from disk in a real browser."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browsers import chromium

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_every_page_is_built_and_requests_nothing_from_a_server(site):
    pages = [path.read_text(encoding="utf-8") for path in site.glob("*.html")]
    assert len(pages) >= 14
    requests = [
        item for page in pages for item in re.findall(r'<(?:script|img|link)\b[^>]*(?:src|href)="(https?:[^"]+)', page)
    ]
    assert requests == []


@pytest.fixture
def browser():
    """Headless Chromium that reaches no server."""
    with chromium() as driver:
        yield driver


@pytest.mark.browser
def test_search_works_in_pages_opened_from_disk(site, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    browser.get((site / "index.html").as_uri())
    browser.find_element(By.CLASS_NAME, "md-search__input").send_keys("zero_advantage_groups")
    until = WebDriverWait(browser, 60).until(
        lambda one: [link.get_attribute("href") for link in one.find_elements(By.CLASS_NAME, "md-search-result__link")]
    )
    assert any("/viewer.html" in link for link in until)
    assert browser.get_log("browser") == []


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_have_the_colours_of_the_site(site, browser, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    browser.get((site / "viewer.html").as_uri())
    execute_script = browser.execute_script(
        "return [...document.querySelectorAll('article img')].filter((one) => one.offsetWidth).map((one) => one.src)"
    )
    assert len(execute_script) == 6 and all(source.endswith(f"#only-{scheme}") for source in execute_script)
    browser.get((site / "index.html").as_uri())
    plot = "return getComputedStyle(document.querySelector('article img')).filter"
    assert ("invert" in browser.execute_script(plot)) == (scheme == "dark")
