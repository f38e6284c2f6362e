"""A pytest plugin that adds the CPU time of every test, and prints the dearest files and tests at the end.

Seconds on the clock depend on what else a machine does; CPU seconds are what the budget of the suite counts. Of child
processes only those count that have ended and were waited for, so a worker that a session shares is charged to the last
test.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from collections.abc import Iterator

import pytest

ROWS = 10  # files and tests that are printed
_STARTED = pytest.StashKey[float]()


def _seconds() -> float:
    usages = (resource.getrusage(name) for name in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = _seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[pytest.TestReport]:
    report: pytest.TestReport = yield
    now = _seconds()
    report.user_properties.append(("cpu_seconds", now - item.stash[_STARTED]))  # xdist hands it to the main process
    item.stash[_STARTED] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    by_test: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, value in getattr(report, "user_properties", ()):
                if name == "cpu_seconds":
                    by_test[report.nodeid] += value
    by_file: dict[str, float] = defaultdict(float)
    for test, seconds in by_test.items():
        by_file[test.partition("::")[0]] += seconds
    if sum(by_file.values()) < 60:
        return
    terminalreporter.write_sep("=", f"CPU time of the tests: {sum(by_file.values()) / 60:.1f} minutes")
    for times in (by_file, by_test):
        for name in sorted(times, key=times.__getitem__, reverse=True)[:ROWS]:
            terminalreporter.write_line(f"{times[name]:7.1f} s  {name}")
