"""Learning curves: seeds are averaged where all of them have been, and the picture is really drawn."""

import shutil
import struct
from dataclasses import replace

import numpy as np
import pytest

from gagpo.base.errors import InvalidArgument
from gagpo.eval.curves import band, chart_panels, evaluation_points, metric_panel, plot_curves, training_lines
from gagpo.eval.runs import group_runs, load_run
from tests.rejections import rejects


def test_seeds_are_averaged_only_on_the_x_they_share():
    summed = band([([0, 10, 20], [0.0, 1.0, 2.0]), ([5, 15], [1.0, 3.0]), ([], [])])
    assert summed is not None
    assert summed.x.tolist() == [5, 10, 15]
    assert summed.low.tolist() == [0.5, 1.0, 1.5] and summed.high.tolist() == [1.0, 2.0, 3.0]
    assert summed.mean.tolist() == [0.75, 1.5, 2.25]
    assert band([([0, 1], [0, 0]), ([2, 3], [1, 1])]) is None
    assert band([([], [])]) is None


def test_evaluations_at_nearly_equal_turns_are_taken_together():
    summed = band([([0, 100], [0.2, 0.6]), ([0, 120], [0.4, 0.8])], pointwise=True)
    assert summed is not None
    assert summed.x.tolist() == [0, 110] and summed.mean.tolist() == pytest.approx([0.3, 0.7])


def test_lines_come_from_the_files(tmp_path, make_run):
    run = load_run(make_run(tmp_path / "run", iterations=10))
    ((x, y),) = training_lines([run], "turns")
    assert x == [row["turns_total"] for row in run.metrics] and y == [row["success_rate"] for row in run.metrics]
    ((x, rates),) = evaluation_points([run], "valid_unseen", "iteration")
    assert x == [0, 5, 10]
    assert rates == [evaluation.result.success for evaluation in run.evaluations if evaluation.split == "valid_unseen"]


def test_the_average_of_the_weights_is_no_point_of_the_curve(tmp_path, make_run):
    """It is measured after as many iterations as the weights themselves, and took their place."""
    folder = make_run(tmp_path / "run", iterations=10)
    before = load_run(folder)
    shutil.copy(folder / "evals" / "before-valid_unseen.json", folder / "evals" / "average-valid_unseen.json")
    after = load_run(folder)
    assert evaluation_points([after], "valid_unseen", "turns") == evaluation_points([before], "valid_unseen", "turns")
    assert after.last("valid_unseen") == before.last("valid_unseen")


def pixels(path):
    from matplotlib.image import imread

    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    return np.round(imread(path)[..., :3] * 255).astype(int)


def share_of(picture, colour):
    expected = np.array(struct.unpack("BBB", bytes.fromhex(colour[1:])))
    return float((np.abs(picture - expected).max(axis=-1) <= 6).mean())


@pytest.mark.parametrize(("suffix", "head"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("PNG", b"\x89PNG")])
def test_the_suffix_decides_the_format_and_equal_figures_are_equal_files(tmp_path, make_run, suffix, head):
    run = group_runs([make_run(tmp_path / "run", iterations=4)])
    first, second = (plot_curves(run, tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first.startswith(head) and first == second


@pytest.mark.parametrize("name", ["fig.jpg", "fig", "fig.pdf.gz"])
def test_another_suffix_is_refused_before_anything_is_drawn(tmp_path, name):
    with rejects(InvalidArgument, ".svg", ".png", advice=".pdf"):
        plot_curves({}, tmp_path / name)


def test_each_method_is_drawn_in_its_own_colour(tmp_path, make_run):
    runs = [make_run(tmp_path / f"{name}-seed{i}", seed=i, iterations=8) for name in ("gagpo", "grpo") for i in (1, 2)]
    both = pixels(plot_curves(group_runs(runs), tmp_path / "deep" / "curves.png", x="turns", smooth=2))
    item = pixels(plot_curves(group_runs(runs[:1]), tmp_path / "one.png"))
    assert share_of(both, "#0072B2") > 1e-4 and share_of(both, "#D55E00") > 1e-4
    assert share_of(item, "#0072B2") > 1e-4 and share_of(item, "#D55E00") == 0
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == ["curves.png"]


def test_a_panel_of_some_of_the_seeds_says_so(tmp_path, make_run):
    runs = {"gagpo": [load_run(make_run(tmp_path / f"seed{i}", seed=i, iterations=8)) for i in (1, 2, 3)]}
    assert [panel.title for panel in chart_panels(runs, "turns", 1)][1:] == [
        "success on valid_unseen",
        "success on valid_seen",
    ]
    runs["gagpo"][1:] = [replace(run, evaluations=[]) for run in runs["gagpo"][1:]]
    titles = [panel.title for panel in chart_panels(runs, "turns", 1)]
    assert titles[1] == "success on valid_unseen (1 of 3 seeds)"


def test_equal_runs_give_equal_pictures(tmp_path, make_run):
    run = group_runs([make_run(tmp_path / "run", iterations=3)])
    first, second = plot_curves(run, tmp_path / "a.png"), plot_curves(run, tmp_path / "b.png")
    assert first.read_bytes() == second.read_bytes()


def test_labels_that_look_like_formulas_are_drawn_as_they_are(tmp_path, make_run):
    run = load_run(make_run(tmp_path / "run", iterations=3))
    plot_curves({f"$\\frac{{1}}${'x' * 50}": [run]}, tmp_path / "a.png")  # a parsed formula would raise


def test_metrics_with_holes_and_no_evaluations_are_drawn(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"iteration": 1, "success_rate": 0.1}\n{"iteration": 2}\n{"iteration": 3, "succ'
    )
    pixels(plot_curves(group_runs([tmp_path]), tmp_path / "curves.png"))


def test_what_cannot_be_drawn_is_said(tmp_path, make_run):
    run = make_run(tmp_path / "run", iterations=3)
    with rejects(InvalidArgument, key="x"):
        plot_curves(group_runs([run]), tmp_path / "curves.png", x="time")
    (tmp_path / "metrics.jsonl").write_text('{"iteration": 1, "loss": 0.1}\n')
    with rejects(InvalidArgument, "success_rate", "iteration"):
        plot_curves(group_runs([tmp_path]), tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def texts_of(groups, tmp_path, monkeypatch, **more):
    """The picture, and the texts on it: of the axis, and of the legend."""
    from gagpo.eval import curves

    figures = []
    monkeypatch.setattr(curves, "write_figure", lambda figure, output: figures.append(figure))
    plot_curves(groups, tmp_path / "curves.png", **more)
    (axis,) = figures[0].axes
    return axis, [text.get_text() for text in figures[0].legends[0].get_texts()]


@pytest.mark.parametrize(
    ("metric", "label", "factor"),
    [
        ("entropy", "nats per token", 1),
        ("kl", "nats per token", 1),
        ("grad_norm", "norm", 1),
        ("mean_turns", "turns", 1),
        ("clip_fraction", "%", 100),
        ("own_metric", "", 1),  # not in the register
    ],
)
def test_any_logged_metric_is_drawn_with_its_unit(tmp_path, make_run, monkeypatch, metric, label, factor):
    runs = [load_run(make_run(tmp_path / f"seed{i}", seed=i, iterations=4)) for i in (1, 2)]
    logged = [tuple({"own_metric": 0.5, **row} for row in run.metrics) for run in runs]
    groups = {"gagpo": [replace(run, metrics=rows) for run, rows in zip(runs, logged, strict=True)]}
    axis, legend = texts_of(groups, tmp_path, monkeypatch, metric=metric)
    rows = np.array([[row[metric] for row in run.metrics] for run in groups["gagpo"]])
    assert axis.get_ylabel() == label and legend == ["gagpo"] and axis.get_xlabel() == "iterations"
    assert axis.lines[0].get_ydata() == pytest.approx(factor * rows.mean(axis=0))
    ends = axis.collections[0].get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((factor * rows.min(), factor * rows.max()))


def test_methods_without_the_metric_say_so(tmp_path, make_run, monkeypatch):
    runs = [load_run(make_run(tmp_path / f"seed{i}", seed=i, iterations=4)) for i in (1, 2)]
    bare = [replace(run, metrics=tuple({k: v for k, v in r.items() if k != "kl"} for r in run.metrics)) for run in runs]
    groups = {"all": runs, "some": [runs[0], bare[1]], "none": bare}
    axis, legend = texts_of(groups, tmp_path, monkeypatch, metric="kl", x="turns", smooth=2)
    assert legend == ["all", "some (1 of 2 seeds)", "none (not logged)"]
    assert axis.get_title(loc="left") == "divergence from the reference, mean of 2 iterations" and len(axis.lines) == 2


def test_the_success_rate_of_an_environment_is_in_per_cent(tmp_path, make_run, monkeypatch):
    run = load_run(make_run(tmp_path / "run", iterations=4))
    mixed = replace(run, metrics=tuple({"success_rate/maths": 0.25, **row} for row in run.metrics))
    axis, _ = texts_of({"a": [mixed]}, tmp_path, monkeypatch, metric="success_rate/maths")
    assert axis.get_ylim() == (0, 100) and axis.lines[0].get_ydata().tolist() == [25] * 4
    assert axis.get_title(loc="left") == "success in training, maths, %"


@pytest.mark.parametrize(
    ("metric", "nearest"),
    [("entrpy", "nearest: entropy"), ("grad-norm", "nearest: grad_norm"), ("", "known: "), ("success", "success_rate")],
)
def test_an_unknown_metric_names_the_nearest_and_those_logged(tmp_path, make_run, metric, nearest):
    groups = group_runs([make_run(tmp_path / "run", iterations=3)])
    with pytest.raises(InvalidArgument) as caught:
        metric_panel(groups, metric, "iteration", 1)
    message = str(caught.value)
    assert nearest in message and "clip_fraction" in message and "\n" not in message
    metric_panel(groups, "entropy", "iteration", 1)
    (tmp_path / "run" / "metrics.jsonl").unlink()
    with rejects(InvalidArgument, key="--y"):
        metric_panel(group_runs([tmp_path / "run"]), "entropy", "iteration", 1)
