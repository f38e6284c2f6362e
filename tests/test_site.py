"""The site: built without a warning, searched from disk in a real browser, with worlds in one form."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORLDS = ("alfworld", "webshop", "maths", "sql")
FACTS = ["id", "observation", "action", "reward", "turns", "splits", "expert", "speed", "published", "here"]


@pytest.mark.parametrize("world", WORLDS)
def test_every_world_says_the_same_of_itself_first(world):
    text = (ROOT / "docs" / f"{world}.md").read_text(encoding="utf-8")
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None and table.start() < text.index("\n## ")
    rows = [line.split("|")[1].strip() for line in table[0].splitlines()]
    assert [row for row in rows if row.strip("-")] == FACTS


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


def test_the_reference_shows_neither_roles_nor_examples_as_they_are_written(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    assert re.findall(r":(?:class|func|meth|mod|data):`?", page) == []
    assert "<blockquote>" not in page and "``" not in page
    assert 'class="gp">&gt;&gt;&gt; ' in page


def test_the_site_asks_no_server_for_anything(site):
    pages = [path.read_text(encoding="utf-8") for path in site.glob("*.html")]
    assert len(pages) > 20
    asked = [
        one for page in pages for one in re.findall(r'<(?:script|img|link)\b[^>]*(?:src|href)="(https?:[^"]+)', page)
    ]
    assert asked == []


@pytest.mark.browser
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="Chromium is not installed")
def test_search_works_in_pages_opened_from_disk(site, tmp_path):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    options = webdriver.ChromeOptions()
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run window-size=1280,900"
    for flag in (*flags.split(), f"user-data-dir={tmp_path / 'profile'}", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser.get((site / "index.html").as_uri())
        browser.find_element(By.CLASS_NAME, "md-search__input").send_keys("zero_groups")
        found = WebDriverWait(browser, 60).until(
            lambda one: [
                link.get_attribute("href") for link in one.find_elements(By.CLASS_NAME, "md-search-result__link")
            ]
        )
        assert any("/metrics.html" in link for link in found)
        assert browser.get_log("browser") == []
    finally:
        browser.quit()
