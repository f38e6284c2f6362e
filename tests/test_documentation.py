"""Pages that claim to run do, and pages that are made from the code are what the code makes."""

import json
import re
from pathlib import Path

import pytest

from gagpo.runs import register
from gagpo.settings import RunSettings, page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
TOPS = ("envs", "agents", "eval", "gagpo", "tests", "docs", "configs", "benchmarks", "constraints")
GROUPS = {
    "gagpo.environments",
    "gagpo.curricula",
    "gagpo.engines",
    "gagpo.credits",
    "gagpo.trackers",
}  # of entry points


def named_files(text):
    """Files and folders that a page names in backticks or links to; ``NAME`` in capitals stands for any."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        for word in re.findall(rf"(?<![\w./-])(?:{'|'.join(TOPS)})/[\w./*-]*", code):
            path = word.rstrip(".")
            # what begins like the package and is no file of ours is an environment's id, or another suite's name
            if not re.search(r"\b[A-Z]+\b", path) and (not path.startswith("gagpo/") or re.search(r"/$|\.\w+$", path)):
                yield path


def named_modules(text):
    """Modules of ours, and names in them, that a page has in backticks."""
    for code in re.findall(r"`([^`\n]+)`", text):
        yield from (name for name in re.findall(r"(?<![\w./])gagpo(?:\.\w+)+", code) if name not in GROUPS)


def exists(module):
    """Whether a dotted name is a module of ours, or a name that stands in one."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:length])
        files = [file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
        if files:
            text = files[0].read_text(encoding="utf-8")
            return length == len(parts) or re.search(rf"\b{parts[length]}\b", text) is not None
    return False


def test_names_of_files_and_modules_are_found_in_pages():
    text = (
        "`gagpo/a.py`, `python envs/b/ -k x`, `gagpo/Math-v0`, `tests/c`, `docs/NAME.md`, `gagpo.d.E`, `gagpo.credits`"
    )
    assert list(named_files(text)) == ["gagpo/a.py", "envs/b/", "tests/c"]
    assert list(named_modules(text)) == ["gagpo.d.E"]
    assert exists("gagpo.settings.load") and exists("gagpo.credit") and not exists("gagpo.settings.laod")
    assert not exists("gagpo.nowhere")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page):
    text = page.read_text(encoding="utf-8")
    assert [path for path in named_files(text) if not list(ROOT.glob(path))] == []
    assert [module for module in named_modules(text) if not exists(module)] == []
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", text)
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_settings_reference_is_what_the_code_makes():
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == page.page(), (
        "make it anew: python -m gagpo.settings.page > docs/settings.md"
    )


def test_the_metrics_page_is_what_the_code_makes():
    assert (DOCS / "metrics.md").read_text(encoding="utf-8") == register.page(), (
        "make it anew: python -m gagpo.runs.register > docs/metrics.md"
    )


def test_every_setting_has_a_sentence():
    silent = [
        f"{path}.{name}".strip(".")
        for path, model in page.sections(RunSettings)
        for name, field in model.model_fields.items()
        if not page.meaning(name, field)
    ]
    assert silent == []


def test_the_readmes_tree_names_every_room():
    tree = re.search(r"```\n(envs/ .*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert tree is not None
    for top in ("envs", "agents", "eval", "gagpo"):
        part = re.search(rf"^{top}/ .*?(?=^\S|\Z)", tree[1], re.MULTILINE | re.DOTALL)
        assert part is not None, top
        rooms = {path.parent.name for path in (ROOT / top).glob("*/__init__.py") if not path.parent.is_symlink()}
        assert {room for room in rooms if f"{room}/" not in part[0]} == set(), top


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
def test_the_notebook_runs_from_top_to_bottom_and_again(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    notebook = json.loads((DOCS / "first-run.ipynb").read_text(encoding="utf-8"))
    for _ in range(2):  # who changes a number runs it again
        names: dict[str, object] = {}
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), "docs/first-run.ipynb", "exec"), names)
        assert "notebook-grpo" in capsys.readouterr().out


def test_the_notebook_shows_what_it_printed():
    cells = json.loads((DOCS / "first-run.ipynb").read_text(encoding="utf-8"))["cells"]
    printing = [cell for cell in cells if cell["cell_type"] == "code" and "print(" in "".join(cell["source"])]
    assert len(printing) >= 3 and all(cell["outputs"] for cell in printing)
    assert str(Path.home()) not in json.dumps(cells) and "/tmp" not in json.dumps(cells)
