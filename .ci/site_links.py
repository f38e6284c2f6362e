"""A hook of the site: links from the documentation into the source are checked, and shown as plain text.

The pages are also read in the repository, where such links lead somewhere; the site holds no source files.
"""

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks.site_links")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace every link that leaves the documentation by its text; a target that is not there is a warning."""

    def shown(match: re.Match[str]) -> str:
        text, target = match.groups()
        if not (ROOT / "docs" / page.file.src_path).parent.joinpath(target).exists():
            log.warning("%s links to %s, which is not there", page.file.src_path, target)
        return text

    return LINK.sub(shown, markdown)
