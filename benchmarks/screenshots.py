"""The pictures of the viewer in the documentation, from a run of your own, in headless Chromium.

    gagpo view RUN && gagpo view runs && python benchmarks/screenshots.py RUN/view --runs runs/view

Writes ``docs/images/view-*.png``. The group shown is one in which about half of the tries succeed and GAGPO and GRPO
disagree; the way there is the one from the curve: a point, a row, a turn.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from viewer import chromium

CHOOSE = """
const { groups, sources } = viewer.data;
const fit = [...groups.size.keys()].filter((g) => sources[groups.source[g]].stage === "train" && groups.differ[g] > 0);
const score = (g) => groups.differ[g] - 2 * Math.abs(groups.wins[g] / groups.size[g] - 0.5) - groups.turns[g] / 30;
const best = fit.sort((a, b) => score(b) - score(a))[0];
return [viewer.groupLink(best), best];
"""


class Camera:
    def __init__(self, browser: Any, out: Path):
        self.browser, self.out = browser, out

    def show(self, address: str, height: int = 860) -> None:
        size = {"width": 1280, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "light"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.browser.execute_script("location.hash = arguments[0]", address)
        for _ in range(1500):
            if self.browser.execute_script("return document.documentElement.dataset.ready") == address:
                break
            time.sleep(0.02)
        time.sleep(0.3)

    def take(self, name: str) -> None:
        path = self.out / f"view-{name}.png"
        self.browser.save_screenshot(str(path))
        _smaller(path)
        print(path)


def _smaller(path: Path) -> None:
    """A picture of text and flat areas needs no more than 256 colours."""
    from PIL import Image

    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
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
            browser.get((arguments.view.resolve() / "index.html").as_uri())
            camera = Camera(browser, arguments.out)
            camera.show("#/", 760)
            camera.take("overview")
            group, number = browser.execute_script(CHOOSE)
            camera.show(group, 1000)
            camera.take("group")
            turn = browser.execute_script("return document.querySelector('td.differs a').getAttribute('href')")
            camera.show(turn, 860)
            camera.take("episode")
            task = browser.execute_script(
                "return viewer.data.tasks.findIndex((_, t) => { const s = new Set(); "
                "viewer.data.groups.task.forEach((x, g) => { if (x === t) s.add(viewer.group(g).source.stage); }); "
                "return s.has('before') && s.has('after'); })"
            )
            if task >= 0:
                camera.show(f"#/task/{task}", 860)
                link = browser.execute_script("return document.querySelector('a.button').getAttribute('href')")
                camera.show(link, 860)
                camera.take("before-after")
            assert number >= 0
            if arguments.runs:
                browser.get((arguments.runs.resolve() / "index.html").as_uri())
                camera.show("#/runs", 480)
                camera.take("runs")
                camera.show("#/runs/0/1", 860)
                camera.take("two-runs")
        finally:
            browser.quit()


if __name__ == "__main__":
    main()
