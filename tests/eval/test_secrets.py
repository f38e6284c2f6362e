"""Settings of a run that are shown: in the report and in the viewer's table of runs."""

import pytest
import yaml

from gagpo.eval.runs import load_run, shown_settings
from gagpo.runs.reading import BadResult
from tests.eval.report.test_report import report
from tests.rejections import rejects

SETTINGS = """
name: run
agent: {api_key: sk-private-1, max_tokens: 32, tokenizer: fast}
engine:
  options:
    password: |
      private-2
      private-3
    urls: ["http://me:private-4@host:80/v1"]
    servers: [{access_token: private-5, port: 1}]
"""


@pytest.fixture
def folder(tmp_path, make_run):
    folder = make_run(tmp_path / "run", iterations=2)
    (folder / "config.yaml").write_text(SETTINGS)
    return folder


def test_secrets_are_left_out_at_any_depth_and_over_several_lines(folder):
    safe_dump = yaml.safe_dump(shown_settings(folder / "config.yaml"))
    assert "private" not in safe_dump and safe_dump.count("(not shown)") == 4
    assert "max_tokens: 32" in safe_dump and "tokenizer: fast" in safe_dump and "host:80/v1" in safe_dump


def test_neither_report_nor_viewer_shows_one(folder):
    assert "private" not in report(folder).text
    settings = load_run(folder).settings
    assert "private" not in str(settings) and settings["agent.max_tokens"] == "32"


def test_a_file_that_names_itself_again_and_again_is_refused(tmp_path):
    lines = ["a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with rejects(BadResult, ",000 values"):
        shown_settings(tmp_path / "config.yaml")
