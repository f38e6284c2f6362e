"""What the folder registers."""

from gagpo.envs.offers import health_checks
from gagpo.envs.web import driver
from gagpo.envs.web.errors import BrowserMissing


def test_the_browser_is_named_and_an_old_one_gets_advice(monkeypatch):
    def missing():
        raise BrowserMissing("needs Chromium")

    check = health_checks()["browser"]
    monkeypatch.setattr(driver, "find_programs", lambda: ("chromium", "chromedriver"))
    monkeypatch.setattr(driver, "installed_version", lambda: "Chromium 156.0")
    assert check().summary == "Chromium 156.0"
    monkeypatch.setattr(driver, "installed_version", missing)
    assert check().verdict == "warning"
    monkeypatch.setattr(driver, "find_programs", missing)
    assert check().verdict == "ok"
