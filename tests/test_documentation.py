"""Pages that claim to run do, and pages that are made from the code are what the code makes."""

import json
import re
from pathlib import Path

import pytest

from gagpo.eval.metrics import register
from gagpo.settings import RunSettings, page

DOCS = Path(__file__).parents[1] / "docs"


def test_the_settings_reference_is_what_the_code_makes():
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page.page(), (
        "make it anew: python -m gagpo.settings.page > docs/settings.md"
    )


def test_the_metrics_page_is_what_the_code_makes():
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == register.page(), (
        "make it anew: python -m gagpo.eval.metrics.register > docs/metrics.md"
    )


def test_every_setting_has_a_sentence():
    silent = [
        f"{path}.{name}".strip(".")
        for path, model in page.sections(RunSettings)
        for name, field in model.model_fields.items()
        if not page.meaning(name, field)
    ]
    assert silent == []


@pytest.mark.slow
def test_the_python_page_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    notebook = json.loads((DOCS / "first-run.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), "docs/first-run.ipynb", "exec"), names)
    assert "notebook-grpo" in capsys.readouterr().out
