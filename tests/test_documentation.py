"""The documentation is true: files and modules it names exist, its Python runs, and its tables match the code."""

import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks import scaling
from gagpo.algorithms import PRESETS, Algorithm, load
from gagpo.cli.main import app
from gagpo.credit import CREDITS
from gagpo.settings import RunSettings
from tests.ci_tools import tool
from tests.folders import complete

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LAB = ROOT / "lab"
TOP = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "AGENTS.md")]
PAGES = [*TOP, *sorted(DOCS.glob("*.md")), *sorted(LAB.glob("*.md"))]
FOLDERS = ("envs", "agents", "eval", "gagpo", "tests", "docs", "lab", "configs", "benchmarks", "constraints")
ENTRY_POINTS = {"gagpo.environments", "gagpo.engines", "gagpo.credits", "gagpo.trackers"}
LOG = LAB / "log.md"  # describes the code at its date
PICTURES = ("view-group",)  # README shows them in the colours of the reader's page


def read(path):
    return path.read_text(encoding="utf-8")


def words(path):
    return len(re.findall(r"\S*\w\S*", read(path)))


def anchors(text):
    """Where links into a page can lead: its headings as the site writes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def named_files(text):
    """Files and folders that a page names in backticks; ``NAME`` in capitals stands for any."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`\n]+)`", prose):
        for word in re.findall(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./*-]*", code):
            path = word.rstrip(".")
            # An environment's id looks like a path into the package.
            if not re.search(r"\b[A-Z]+\b", path) and (not path.startswith("gagpo/") or re.search(r"/$|\.\w+$", path)):
                yield path


def named_modules(text):
    """Modules of ours, and names in them, that a page has in backticks."""
    for code in re.findall(r"`([^`\n]+)`", text):
        yield from (name for name in re.findall(r"(?<![\w./])gagpo(?:\.\w+)+", code) if name not in ENTRY_POINTS)


def exists(module):
    """Whether a dotted name is a module of ours, or a name that stands in one."""
    segments = module.split(".")
    for length in range(len(segments), 0, -1):
        joinpath = ROOT.joinpath(*segments[:length])
        files = [file for file in (joinpath.with_suffix(".py"), joinpath / "__init__.py") if file.is_file()]
        if files:
            return length == len(segments) or re.search(rf"\b{segments[length]}\b", read(files[0])) is not None
    return False


def test_names_of_files_and_modules_are_found_in_pages():
    text = "`gagpo/a.py`, `python envs/b/ -k x`, `gagpo/Math-v0`, `tests/c`, `docs/NAME.md`, `gagpo.d.E`"
    assert list(named_files(text)) == ["gagpo/a.py", "envs/b/", "tests/c"]
    assert list(named_modules(text)) == ["gagpo.d.E"]
    assert exists("gagpo.settings.load") and not exists("gagpo.settings.laod") and not exists("gagpo.nowhere")


@complete
@pytest.mark.parametrize("path", PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_file_module_and_link_of_a_page_exists(path):
    text = read(path)
    if path != LOG:
        assert [name for name in named_files(text) if not list(ROOT.glob(name))] == []
        assert [module for module in named_modules(text) if not exists(module)] == []
    pictures = re.findall(r'\b(?:src|srcset)="([^"]+)"', text)
    assert path != ROOT / "README.md" or pictures == [
        f"docs/images/{name}{dark}.png" for name in PICTURES for dark in ("-dark", "")
    ]
    for link in [*pictures, *re.findall(r"\]\((?!https?:|mailto:)([^)\s]+)", text)]:
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        assert target.exists(), link
        schemes = ("only-light", "only-dark")  # of the site, in which a picture is shown
        recorded = schemes if target.suffix == ".png" else anchors(read(target)) if anchor else ()
        assert not anchor or anchor in recorded, link


def test_every_page_that_the_code_names_exists():
    folders = ("envs", "agents", "eval", "gagpo", "configs", "benchmarks", "tests", ".ci")
    files = [
        file for folder in folders for type_name in ("*.py", "*.yaml") for file in (ROOT / folder).rglob(type_name)
    ]
    named = {(page, file.name) for file in files for page in re.findall(r"\b(?:docs|lab)/[a-z][\w-]*\.md", read(file))}
    assert {(page, file) for page, file in named if not (ROOT / page).exists()} == set()


@complete
def test_the_settings_page_is_what_the_code_makes():
    assert read(DOCS / "settings.md") == tool("settings_page").page(), "python .ci/settings_page.py > docs/settings.md"


def test_the_board_is_made_from_the_stored_results():
    assert read(DOCS / "board.md") == tool("board").page(), "python .ci/board.py > docs/board.md"


def test_every_setting_has_a_sentence():
    page = tool("settings_page")
    silent = [
        f"{path}.{name}".strip(".")
        for path, model in page.sections(RunSettings)
        for name, field in model.model_fields.items()
        if not page.meaning(name, field)
    ]
    assert silent == []


def test_every_setting_that_a_page_names_exists():
    sections = dict(tool("settings_page").sections(RunSettings))
    dotted = re.compile(rf"(?<![\w.])({'|'.join(name for name in sections if name.isidentifier())})\.([a-z_]+)\b")
    for path in (*TOP, *DOCS.glob("*.md")):
        for code in re.findall(r"`([^`\n]+)`", read(path)):
            for section, key in dotted.findall(code):
                assert key in sections[section].model_fields or key in ("py", "md"), f"{path.name}: {section}.{key}"


def test_the_table_of_presets_is_the_codes():
    table = read(DOCS / "algorithms.md").split("<!-- presets -->")[1].split("<!-- end of presets -->")[0]
    cells = dict(re.findall(r"^\| `(\w+)` \| `(.*)` \|$", table, re.MULTILINE))
    assert cells.keys() == PRESETS.keys()
    for name, text in cells.items():
        algorithm = Algorithm.model_validate(yaml.safe_load(f"{{{text}}}"))
        assert algorithm.model_copy(update={"preset": name}) == load(name), name


def test_the_options_of_credits_exist_with_the_defaults_that_are_printed():
    sections = re.findall(r"^### [^\n]*?`(\w+)`[^\n]*\n(.*?)(?=^##|\Z)", read(DOCS / "credits.md"), re.M | re.S)
    checked = 0
    for preset, text in sections:
        credit = load(preset).credit
        for option, default in re.findall(r"^\| `(\w+)` \| ([\w.-]+) \|", text, re.MULTILINE):
            recorded = type(CREDITS.find(credit.name)()).model_fields[option].default
            assert default in ("none", str(recorded), str(recorded).lower()) or float(default) == recorded, (
                f"{preset}.{option}"
            )
            checked += 1
    assert checked >= 15


def test_the_table_of_metrics_is_the_registers():
    page = read(DOCS / "metrics.md")
    assert page == tool("metrics_table").with_metrics(page), "run python .ci/metrics_table.py"


def test_the_tables_of_the_papers_page_are_those_of_the_stored_rows():
    page = read(DOCS / "papers.md")
    assert page == tool("papers_tables").with_tables(page), "run python .ci/papers_tables.py"


@complete
def test_the_plans_of_the_recipes_are_what_is_printed():
    rows = re.findall(
        r"^\| `(\S+)` \| \w+ of (\d+) GB.*\| (\d+\.\d of \d+\.\d) \|$", read(DOCS / "scale.md"), re.MULTILINE
    )
    assert len(rows) == 4
    for config, gigabytes, expected in rows:
        output = CliRunner().invoke(app, ["plan", config, "--gpu-memory", gigabytes]).output
        assert f"{gigabytes} GB: fits: {expected} GB" in output


@complete
def test_the_plan_of_a_cluster_is_what_is_printed():
    pattern = r"```\n(gagpo plan --nodes[^\n]+)\n```\n\nThe last lines:\n\n```text\n(.*?)```"
    command, expected = re.search(pattern, read(DOCS / "scale.md"), re.DOTALL).groups()
    output = CliRunner().invoke(app, command.split()[1:]).output
    assert set(expected.splitlines()) <= set(output.splitlines())


def test_the_scaling_table_is_what_its_script_prints():
    table = re.search(r"<!-- scaling -->\n(.*?)\n<!-- /scaling -->", read(DOCS / "scale.md"), re.DOTALL)[1]
    assert table.splitlines() == scaling.table().markdown(), "run python -m benchmarks.scaling"


def test_the_files_of_the_drawing_exist_and_define_what_travels_on():
    (drawing,) = re.findall(r"```text\n(    step .*?)```", read(DOCS / "how-it-works.md"), re.DOTALL)
    steps = re.findall(r"(\S+\.py) +(\w+)", drawing)
    assert len(steps) >= 15
    for file, first in steps:
        assert (ROOT / file).is_file(), file
        if first[0].isupper():
            source = read(ROOT / file) + "".join(map(read, (ROOT / file).parent.glob("*.py")))
            assert re.search(rf"\b{first}\b", source), f"{first} is not in {file} or beside it"


def test_the_pages_stay_within_their_limits():
    pages = {path.name: words(path) for path in DOCS.glob("*.md")}
    pages = {name: count for name, count in pages.items() if name not in ("settings.md", "board.md")}
    assert sum(pages.values()) <= 28_000 and words(ROOT / "README.md") <= 1_000
    assert {name for name, count in pages.items() if count > 2_000} == set()


@pytest.mark.slow
@pytest.mark.parametrize(("page", "blocks"), [("api", 4)])
def test_the_python_of_a_page_runs_as_printed(page, blocks, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAGPO_DATA", str(tmp_path / "data"))
    programs = re.findall(r"```python\n(.*?)```", read(DOCS / f"{page}.md"), re.DOTALL)
    assert len(programs) >= blocks
    names: dict[str, object] = {}
    for program in programs:
        exec(compile(program, f"docs/{page}.md", "exec"), names)


def test_the_python_of_the_readme_runs_and_has_at_most_ten_lines(capsys):
    programs = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", read(ROOT / "README.md"), re.DOTALL))
    assert programs.keys() == {"sums", "capital", "credit"}
    names: dict[str, dict[str, object]] = {}
    for name, program in programs.items():
        assert program.count("\n") <= 10, name
        names[name] = {"__name__": name}
        exec(compile(program, f"{name}.py", "exec"), names[name])
    assert capsys.readouterr().out.count("1.22474171") == 7
    env = names["sums"]["SumsEnv"](split="test")
    text, _ = env.reset(seed=0)
    number = int(re.findall(r"\d+", text)[0])
    assert env.step(str(number + 7))[1:3] == (1.0, True)


def test_the_map_for_coding_agents_names_files_and_types_that_exist():
    text = read(ROOT / "AGENTS.md")
    for types, files in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:`[\w./]+`(?:, )?)+) \|", text, re.MULTILINE):
        sources = ""
        for file in re.findall(r"`([^`]+)`", files):
            path = ROOT / file
            assert path.exists(), file
            sources += "".join(map(read, path.glob("*.py"))) if path.is_dir() else read(path)
        for name in re.findall(r"`(\w+)`", types):
            assert re.search(rf"^(?:class|def|async def) {name}\b|^{name}\b.*=", sources, re.MULTILINE), name
