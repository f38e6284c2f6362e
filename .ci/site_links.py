"""A hook of the site: links from a page into the repository are checked and shown as plain text.

The pages are also read in the repository, where such links lead somewhere. The site holds no source files.
"""

import logging
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#\s]+)(?:#[^)\s]*)?\)")
log = logging.getLogger("mkdocs.hooks.site_links")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace every link that leaves the documentation with its text; a missing target is a warning."""

    def plain_text(match: re.Match[str]) -> str:
        text, target = match.groups()
        if not (ROOT / "docs" / page.file.src_path).parent.joinpath(target).exists():
            log.warning("%s links to %s, which does not exist", page.file.src_path, target)
        return text

    return LINK.sub(plain_text, markdown)
