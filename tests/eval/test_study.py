"""Many runs in one table: the printed tables of the documentation, t tests by hand, and what cannot stand together."""

import json
from pathlib import Path

import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.eval.curves import plot_curves
from gagpo.eval.runs import group_runs
from gagpo.eval.statistics import paired_t
from gagpo.eval.study import RunRow, Study, curves_of, read_rows, study_of
from gagpo.runs.reading import BadResult
from tests.rejections import rejects

ROOT = Path(__file__).parents[2]
FACTS = {"split": "test", "split_hash": "a" * 16, "tasks": 10, "tries": 2, "area": 0.5, "tokens_total": 5e4}


def row(label, seed, after, **more):
    return RunRow(
        **{**FACTS, "label": label, "seed": seed, "after": after, "reward_after": after, "before": 0.25, **more}
    )


@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("credits", None),
        ("credits-household", "grpo"),
        ("credits-full", "grpo"),
        ("credits-catalogue", None),
        ("credits-shop", None),
        ("swept/credits", None),
        ("algorithms", None),
        ("maths", None),
    ],
)
def test_the_tables_of_the_documentation_are_made_by_it(name, baseline):
    study = study_of({}, [ROOT / "lab" / "results" / f"{name}.jsonl"], baseline)
    pages = (ROOT / "docs" / "results.md", ROOT / "lab" / "results.md")
    printed = "".join(page.read_text(encoding="utf-8") for page in pages).splitlines()
    for line in study.table().markdown():
        assert line in printed, line


def test_differences_are_taken_seed_by_seed():
    rows = [row("a", seed, 0.5 + 0.1 * seed) for seed in (1, 2, 3)] + [row("b", s, 0.4 + 0.1 * s) for s in (2, 3, 9)]
    study = Study.of(rows)
    gap = study.methods[1].gap
    assert gap.value == pytest.approx(-0.1) and gap.high - gap.low < 1e-9  # two shared seeds, the same difference
    assert Study.of(rows, "b").methods[0].label == "b"


def test_differences_to_the_start():
    rows = [row("a", seed, 0.5 + 0.1 * seed, before=0.4) for seed in (1, 2, 3)]
    (method,) = Study.of(rows, "before").methods
    assert method.gap.value == pytest.approx(0.3) and method.p == pytest.approx(paired_t([0.2, 0.3, 0.4]))
    assert "minus before" in Study.of(rows, "before").table().header
    with rejects(InvalidArgument, "b, seed 1", "before training"):
        Study.of([*rows, row("b", 1, 0.5, before=None)], "before")
    called = [*rows, row("before", 1, 0.2)]  # a method of that name is meant, where there is one
    assert Study.of(called, "before").methods[1].gap.value == pytest.approx(0.4)


def test_corrected_for_the_number_of_methods():
    rows = [row("a", s, 0.5 + 0.01 * s) for s in (1, 2, 3)]
    rows += [row("b", s, 0.6 + 0.02 * s) for s in (1, 2, 3)] + [row("c", s, 0.4 + 0.03 * s) for s in (1, 2, 3)]
    _, b, c = Study.of(rows).methods
    assert b.p_holm == pytest.approx(min(1, 2 * min(b.p, c.p))) or c.p_holm == pytest.approx(min(1, 2 * min(b.p, c.p)))


def test_the_result_is_one_table_in_sixty_columns():
    rows = [
        row(label, s, x + s / 100, seconds=90.0)
        for label, x in (("gagpo-first", 0.8), ("grpo", 0.7))
        for s in (1, 2, 3)
    ]
    lines = Study.of(rows).lines(60)
    head = next(line for line in lines if "after %" in line)
    assert all(name in head for name in ("seeds", "difference", "p (Holm)"))
    assert [line.split()[0] for line in lines[2:4]] == ["gagpo-fi..", "grpo"]
    assert "difference: in points, to gagpo-first" in lines


@pytest.mark.parametrize("width", [40, 60, 120])
def test_the_table_fits_a_narrow_terminal_and_a_pipe(width):
    rows = [
        row(label, s, 0.5 + s / 100, seconds=90.0) for label in ("a", "a label that is long | and odd") for s in (1, 2)
    ]
    study = Study.of(rows)
    assert all(len(line) <= width and line.isascii() for line in study.lines(width))
    assert "minutes" in " ".join(study.lines(width)) and "long \\| and" in "\n".join(study.table().markdown())


def test_runs_that_do_not_belong_together_are_refused():
    with rejects(InvalidArgument, "different tasks"):
        Study.of([row("a", 1, 0.5), row("b", 1, 0.5, split_hash="b" * 16)])
    with rejects(InvalidArgument, "same seed", advice="LABEL=FOLDER"):
        Study.of([row("a", 1, 0.5), row("a", 1, 0.6)])
    with rejects(InvalidArgument, "finished run"):
        Study.of([])
    with rejects(InvalidArgument, "'z'", "there are a"):
        Study.of([row("a", 1, 0.5)], "z")


def test_folders_and_files_stand_together(tmp_path, make_run):
    folders = [make_run(tmp_path / f"gagpo-seed{i}", seed=i, iterations=6) for i in (1, 2)]
    study = study_of(group_runs(folders))
    (method,) = study.methods
    assert method.label == "gagpo" and [item.seed for item in method.rows] == [1, 2]
    assert study.table().header[3:] == ["after %", "minus before", "p (Holm)", "1,000 tokens", "minutes"]
    lines = [json.dumps({"study": "x", **row.model_dump(exclude_none=True)}) + "\n" for row in method.rows]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    assert read_rows(tmp_path / "rows.jsonl") == list(method.rows)
    (tmp_path / "rows.jsonl").write_text('{"label": "a"}\n')
    with rejects(BadResult, key="seed", where="rows.jsonl, line 1"):
        study_of({}, [tmp_path / "rows.jsonl"])


def rows_file(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def curve(label, seed, split="test", **changes):
    base = {"label": label, "seed": seed, "split": split, "split_hash": split, "tasks": 4, "tries": 1, "after": 0.5}
    base |= {"reward_after": 0.5, "area": 0.4, "tokens_total": 10.0, "turns": [10.0, 25.0], "success": [0.25, 0.5]}
    return {**base, **changes}


def test_rows_have_curves_over_iterations_and_turns(tmp_path):
    path = rows_file(
        tmp_path / "a.jsonl",
        curve("a", 1),
        curve("a", 1, "other"),  # the same run on another split
        curve("a", 2),
        curve("b", 1, reports_success=False),
    )
    groups = curves_of([path])
    assert {label: len(runs) for label, runs in groups.items()} == {"a": 2}
    assert groups["a"][0].series("success_rate") == ([1, 2], [0.25, 0.5])
    assert groups["a"][0].series("success_rate", "turns_total") == ([10, 25], [0.25, 0.5])


@pytest.mark.parametrize("x", ["iteration", "turns"])
def test_the_rows_of_the_repository_can_be_drawn(tmp_path, x):
    groups = curves_of([ROOT / "lab/results/credits.jsonl"])
    assert sorted(map(len, groups.values())) == [5] * 7 + [15] * 2
    assert plot_curves(groups, tmp_path / "f.pdf", x=x).read_bytes().startswith(b"%PDF")


def test_a_method_with_fewer_seeds_than_the_baseline_shows_less():
    """Ten more seeds of the baseline alone made the table promise what fifteen pairs show."""
    rows = [row("grpo", seed, 0.60 + 0.02 * (-1) ** seed) for seed in range(1, 17)]
    study = Study.of([*rows, *(row("gagpo", seed, 0.61) for seed in range(1, 5))])
    (note,) = study.detectable()[:1]
    assert note == "4 seeds show a difference of 6.2 points or more (80 % power, spread of grpo's 16 seeds)"


def test_a_table_says_which_difference_it_could_have_shown():
    rows = [row("grpo", seed, 0.60 + 0.02 * (-1) ** seed, before=0.2) for seed in range(1, 6)]
    study = Study.of([*rows, *(row("gagpo", seed, 0.61, before=0.2) for seed in range(1, 6))])
    notes = [note for note in study.notes() if "points" in note]
    assert len(notes) == 1 and notes[0].startswith("5 seeds show a difference of ")
    flat = Study.of([item.model_copy(update={"before": 0.59}) for item in study.rows])
    assert "this table cannot tell methods apart: grpo itself gained 0.6 points in training" in flat.notes()
    assert not any("cannot tell" in note or "show a difference" in note for note in Study.of(rows, "before").notes())
    assert not any("show a difference" in note for note in Study.of([rows[0], study.methods[1].rows[0]]).notes())


@pytest.mark.parametrize(
    "name", ["single-turn", "ablations-apmpo", "ablations-sapo", "ablations-agpo", "ablations-asymmetric"]
)
def test_the_single_turn_studies_can_tell_methods_apart(name):
    notes = study_of({}, [ROOT / "lab" / "results" / f"{name}.jsonl"]).notes()
    assert any("show a difference" in note for note in notes) and not any("cannot tell" in note for note in notes)
