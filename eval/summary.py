"""Results as text: rates, intervals, p-values, and the lines of a whole result."""

from __future__ import annotations

import math
from collections.abc import Mapping

from gagpo.base.tables import WIDTH, Table, facts
from gagpo.eval.results import EvalResult, whole
from gagpo.eval.statistics import Interval


def percent(value: float, signed: bool = False) -> str:
    """A share in per cent with one decimal, or ``-`` for NaN.

    >>> percent(0.305), percent(0.04, signed=True), percent(float("nan"))
    ('30.5', '+4.0', '-')
    """
    if math.isnan(value):
        return "-"
    rounded = round(100 * value, 1) + 0.0  # the sum turns -0.0 into 0.0
    return f"{rounded:+.1f}" if signed else f"{rounded:.1f}"


def plain(value: float, digits: int = 1) -> str:
    """A number with ``digits`` decimals, or ``-`` for NaN."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def with_interval(interval: Interval, signed: bool = False) -> str:
    """``30.5 [21.6, 41.2]``, in per cent."""
    low, high = percent(interval.low, signed), percent(interval.high, signed)
    return f"{percent(interval.value, signed)} [{low}, {high}]"


def p_value(value: float) -> str:
    """Three decimals, or ``<.001``.

    >>> p_value(0.0312), p_value(1e-9)
    ('0.031', '<.001')
    """
    return "<.001" if value < 0.0005 else f"{value:.3f}"


def number(value: float, share: bool = False) -> str:
    """A number with three digits, in per cent if it is a share.

    >>> number(0.3051, share=True), number(12345.6), number(0.000312), number(2.0)
    ('30.5 %', '12,346', '0.000312', '2')
    """
    if share:
        return f"{100 * value:.1f} %"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.3g}"


def panel_facts(result: EvalResult) -> list[tuple[str, str]]:
    """Environment, split and model of a result."""
    panel = result.panel
    kwargs = ", ".join(f"{key}={value!r}" for key, value in sorted(panel.kwargs.items()))
    tries = "once each" if panel.tries == 1 else f"{panel.tries} times each"
    at = "" if result.temperature is None else f" at temperature {result.temperature:g}"
    return [
        ("environment", panel.environment + (f" ({kwargs})" if kwargs else "")),
        ("split", f"{panel.split}, {panel.tasks} tasks {tries}, hash {panel.split_hash}"),
        ("model", f"{result.model}{at}"),
    ]


def _cut(result: EvalResult) -> str:
    """The share of responses cut at the token limit; empty without any."""
    if not any(one.cut for one in result.every_try):
        return ""
    most = result.panel.conditions.get("max_tokens")
    return f", {percent(result.cut_rate)} % of the answers cut at {most} tokens (raise max_tokens)"


def environment_lines(results: Mapping[str, EvalResult], width: int = WIDTH) -> list[str]:
    """A table of one model's success in several environments."""
    rows = [[name, one.panel.split, str(one.panel.tasks), with_interval(one.success)] for name, one in results.items()]
    tasks = str(sum(one.panel.tasks for one in results.values()))
    rows.append(["the whole", "", tasks, with_interval(whole(results.values()))])
    return Table(["environment", "split", "tasks", "success %"], rows).lines(width)


def result_lines(result: EvalResult, width: int = WIDTH) -> list[str]:
    """The whole result: panel, success, task types, failures, pass@k."""
    level = f"{100 * result.level:g} %"
    reward = result.mean_reward
    pairs = [
        *panel_facts(result),
        ("success %", f"{with_interval(result.success)} ({result.successes} of {result.episodes}, {level})"),
        ("mean reward", f"{plain(reward.value, 3)} [{plain(reward.low, 3)}, {plain(reward.high, 3)}]"),
        ("mean turns", plain(result.mean_turns)),
        ("invalid %", f"{percent(result.invalid_rate)} of turns{_cut(result)}"),
        ("not ended", f"{result.truncated} truncated, {result.failed} failed, {result.restarts} restarts"),
    ]
    lines = facts(pairs, width)
    if any(result.by_type):
        rows = [
            [kind or "(none)", str(result.tasks_of_type(kind)), with_interval(interval)]
            for kind, interval in result.by_type.items()
        ]
        lines += ["", *Table(["task type", "tasks", "success %"], rows).lines(width)]
    if result.pass_at_k:
        majority = result.majority_at_k
        header = ["k", "pass@k %", *(["majority@k %"] if majority else [])]
        rows = [
            [str(k), percent(value), *([percent(majority[k])] if majority else [])]
            for k, value in result.pass_at_k.items()
        ]
        lines += ["", *Table(header, rows).lines(width)]
    return lines
