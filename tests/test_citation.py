"""The citation file names this version."""

import datetime
import tomllib
from pathlib import Path

from gagpo.base.core_schema import read_mapping

ROOT = Path(__file__).parents[1]


def test_the_citation_file_is_valid_and_of_this_version():
    citation = read_mapping(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "type", "authors", "version", "date-released", "license"} <= set(
        citation
    )
    assert citation["cff-version"] == "1.2.0" and citation["type"] == "software"
    assert str(citation["version"]) == project["version"] and citation["license"] == project["license"]
    assert project["name"] in citation["title"]
    assert datetime.date.fromisoformat(citation["date-released"]) >= datetime.date(2026, 11, 27)
    assert all(set(author) <= {"name", "given-names", "family-names"} and author for author in citation["authors"])
