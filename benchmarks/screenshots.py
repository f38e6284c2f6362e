"""The pictures of the viewer in the documentation, from a run of your own, in headless Chromium.

    gagpo view RUN && gagpo view runs && python -m benchmarks.screenshots RUN/view --runs runs/view

Writes ``docs/images/view-*.png``, light, and ``view-*-dark.png``. The group shown is one in which about half of the
tries succeed and GAGPO and GRPO disagree; the way there is the one from the curve: a point, a row, a turn.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.viewer import chromium

CHOOSE = """
const { groups, sources } = viewer.data;
const fit = [...groups.size.keys()].filter((g) => sources[groups.source[g]].stage === "train" && groups.differ[g] > 0);
const score = (g) => groups.differ[g] - 2 * Math.abs(groups.wins[g] / groups.size[g] - 0.5) - groups.turns[g] / 30;
const best = fit.sort((a, b) => score(b) - score(a))[0];
return [viewer.groupLink(best), best];
"""
BEFORE_AND_AFTER = """
return viewer.data.tasks.findIndex((_, t) => {
  const stages = new Set();
  viewer.data.groups.task.forEach((x, g) => { if (x === t) stages.add(viewer.group(g).source.stage); });
  return stages.has('before') && stages.has('after');
});
"""


class Camera:
    """Takes pictures of pages in light or dark colours."""

    def __init__(self, browser: Any, out: Path, scheme: str):
        self.browser, self.out = browser, out
        self.suffix = "-dark" if scheme == "dark" else ""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def show(self, address: str, height: int = 860) -> None:
        size = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.browser.execute_script("location.hash = arguments[0]", address)
        for _ in range(1500):
            if self.browser.execute_script("return document.documentElement.dataset.ready") == address:
                break
            time.sleep(0.02)
        time.sleep(0.3)

    def take(self, name: str) -> None:
        path = self.out / f"view-{name}{self.suffix}.png"
        self.browser.save_screenshot(str(path))
        _smaller(path)
        print(path)

    def take_run(self, view: Path) -> None:
        """One run: its curves, a group, a turn, and a task before and after training."""
        self.browser.get((view.resolve() / "index.html").as_uri())
        self.show("#/", 760)
        self.take("overview")
        group, number = self.browser.execute_script(CHOOSE)
        assert number >= 0
        self.show(group, 1000)
        self.take("group")
        turn = self.browser.execute_script("return document.querySelector('td.differs a').getAttribute('href')")
        self.show(turn, 860)
        self.browser.execute_script("document.querySelector('.turn-card.chosen details').open = true")
        self.take("episode")
        task = self.browser.execute_script(BEFORE_AND_AFTER)
        if task >= 0:
            self.show(f"#/task/{task}", 860)
            link = self.browser.execute_script("return document.querySelector('a.button').getAttribute('href')")
            self.show(link, 860)
            self.take("before-after")

    def take_runs(self, view: Path) -> None:
        """Several runs: their table, and the first two side by side."""
        self.browser.get((view.resolve() / "index.html").as_uri())
        self.show("#/runs", 480)
        self.take("runs")
        self.show("#/runs/0/1", 860)
        self.take("two-runs")


def _smaller(path: Path) -> None:
    """A picture of text and flat areas needs no more than 256 colours; rare ones such as that of a frame count."""
    from PIL import Image

    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(
            256, method=Image.Quantize.MAXCOVERAGE, kmeans=5, dither=Image.Dither.NONE
        )
    reduced.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("view", type=Path, help="a folder that `gagpo view` wrote")
    parser.add_argument("--runs", type=Path, help="one of several runs: its table, and the first two side by side")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        browser = chromium(profile)
        try:
            for scheme in ("light", "dark"):
                camera = Camera(browser, arguments.out, scheme)
                camera.take_run(arguments.view)
                if arguments.runs:
                    camera.take_runs(arguments.runs)
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
