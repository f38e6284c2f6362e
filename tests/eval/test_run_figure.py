"""The figure of one run: what it draws, and that the names at the lines' ends can be read."""

from itertools import pairwise
from pathlib import Path

from matplotlib.figure import Figure

from gagpo.base.errors import InvalidArgument
from gagpo.eval import run_figure
from gagpo.eval.measures import SUCCESS
from gagpo.eval.results import EvalResult, EvaluatedTaskSet
from gagpo.eval.run_figure import plot_run, run_lines
from gagpo.eval.runs import Evaluation, Run
from gagpo.eval.tries import TaskResult, Try
from tests.rejections import rejects


def evaluation(split, iteration, wins, stage="iteration"):
    tasks = tuple(TaskResult(f"t{n}", "", (Try(n < wins, float(n < wins), 1, 0),)) for n in range(10))
    task_set = EvaluatedTaskSet("gagpo/X-v0", split, "0" * 16, 10, 1, {}, 0, {})
    return Evaluation(f"{stage}-{split}", stage, split, iteration, EvalResult(task_set, "m", 1.0, tasks))


def run_of(*evaluations, rows=4):
    metrics = tuple({"iteration": float(n), "success_rate": 0.2 * n} for n in range(1, rows + 1))
    return Run(Path("runs/walk"), metrics, 0, evaluations)


def drawn(run, path, monkeypatch):
    """The figure that was written."""
    figures = []

    def write(figure: Figure, output):
        figures.append(figure)
        figure.savefig(output)
        return output

    monkeypatch.setattr(run_figure, "write_figure", write)
    plot_run(run, path)
    return figures[0]


def test_training_and_every_evaluation_are_drawn_with_their_names(tmp_path, monkeypatch):
    evaluations = [
        evaluation("test", 0, 1, "before"),
        evaluation("test", 4, 8, "after"),
        evaluation("dev", 2, 7),
        evaluation("dev", 4, 8),
    ]
    run = run_of(*evaluations)
    assert [(line.name, list(line.x)) for line in run_lines(run, SUCCESS)] == [
        ("training", [1, 2, 3, 4]),
        ("test", [0, 4]),
        ("dev", [2, 4]),
    ]
    figure = drawn(run, tmp_path / "curves.png", monkeypatch)
    (axis,) = figure.axes
    texts = sorted(axis.texts, key=lambda text: text.get_window_extent().y0)
    assert sorted(text.get_text() for text in texts) == ["dev 80 %", "test 80 %", "training 80 %"]
    boxes = [text.get_window_extent() for text in texts]
    assert all(lower.y1 <= upper.y0 + 1 for lower, upper in pairwise(boxes)), "they overlap"
    assert all(box.x1 <= figure.bbox.x1 for box in boxes), "a name leaves the picture"
    assert len(axis.collections) == 2  # whiskers of each split
    assert "first point: before training" in figure._supxlabel.get_text()


def test_a_single_evaluation_is_a_point_and_nothing_is_an_error(tmp_path, monkeypatch):
    figure = drawn(run_of(evaluation("test", 0, 3, "before"), rows=0), tmp_path / "one.png", monkeypatch)
    assert [text.get_text() for text in figure.axes[0].texts] == ["test 30 %"]
    figure = drawn(run_of(rows=3), tmp_path / "two.png", monkeypatch)
    assert figure._supxlabel.get_text() == "iterations"
    with rejects(InvalidArgument, "curve"):
        plot_run(run_of(rows=0), tmp_path / "none.png")
