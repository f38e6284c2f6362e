"""What to type to install an extra: one form in all messages and pages, and only extras that exist."""

import re
import tomllib
from pathlib import Path

import pytest

from gagpo.base.extras import UNPINNED, pip_install

ROOT = Path(__file__).parents[3]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
FOLDERS = ("agents", "configs", "docs", "envs", "eval", "gagpo")


@pytest.mark.parametrize(
    ("requirement", "command"),
    [
        ("gagpo[web]", "pip install -c constraints.txt -e '.[web]'"),
        ("gagpo[openenv]", "pip install -e '.[openenv]'"),
        ("textarena", "pip install 'textarena'"),
        ("gagpo[web]; rm", "pip install 'gagpo[web]; rm'"),
    ],
)
def test_an_extra_is_installed_from_the_clone(requirement, command):
    assert pip_install(requirement) == command


def test_every_install_line_has_this_form_and_names_an_extra():
    files = [ROOT / "README.md"]
    files += [
        path
        for folder in FOLDERS
        for type_name in ("py", "md", "yaml")
        for path in (ROOT / folder).rglob(f"*.{type_name}")
    ]
    for path in files:
        for line in path.read_text(encoding="utf-8").splitlines():
            assert not re.search(r"pip install ['\"]?gagpo\[", line), (path, line)
            for pinned, extra in re.findall(r"(-c constraints\.txt )?-e '\.\[([a-z-]+)\]'", line):
                assert extra in EXTRAS and (bool(pinned) or extra in UNPINNED or "vllm" in extra), (path, line)


def test_the_page_of_the_first_run_lists_every_extra():
    page = (ROOT / "docs" / "first-run.md").read_text(encoding="utf-8")
    table = page[page.index("| extra | adds |") :].split("\n\n")[0]
    assert set(re.findall(r"`([a-z-]+)`", table)) >= set(EXTRAS)
