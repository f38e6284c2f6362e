"""What this folder offers to the rest of the package."""

from gagpo.base.findings import Finding
from gagpo.envs.offers import EnvironmentOffer


def check_browser() -> Finding:
    """Check that Chromium is new enough; having none is no fault, because only this environment needs it."""
    from gagpo.envs.web import driver
    from gagpo.envs.web.errors import BrowserMissing

    try:
        driver.find_programs()
    except BrowserMissing:
        return Finding("ok", "no Chromium; only gagpo/Web-v0 needs it")
    try:
        version = driver.installed_version()
    except BrowserMissing as error:
        return Finding("warning", "Chromium cannot be used", {}, str(error))
    return Finding("ok", version, {"version": version})


OFFER = EnvironmentOffer(
    environments={"Web-v0": "gagpo.envs.web.env:WebEnv"},
    health={"browser": check_browser},
)
