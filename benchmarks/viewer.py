"""How fast the viewer is with 10,000 episodes, in headless Chromium: first paint, filters, opening a group.

    python -m benchmarks.viewer            # prints a table; --json one JSON object

The episodes are made up: 1,250 groups of eight tries of ten turns, spread over 78 iterations. Times are the median of
``--repeat`` loads; a filter is timed from the change of its value to the next painted frame.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from gagpo.eval.viewer.export import export

FIRST_PAINT, FILTER = 2000.0, 200.0  # milliseconds, the targets

FILTERED = """
const [name, value, done] = arguments;
const field = document.querySelector(`.filters [name="${name}"]`);
const told = document.querySelector('main [role="status"]');
const begun = performance.now();
const seen = new MutationObserver(() => {
  seen.disconnect();
  requestAnimationFrame(() => {
    const channel = new MessageChannel();
    channel.port1.onmessage = () => done([performance.now() - begun, told.textContent]);
    channel.port2.postMessage(0);
  });
});
seen.observe(told, {childList: true, characterData: true, subtree: true});
field.value = value;
field.dispatchEvent(new Event(name === 'task' ? 'input' : 'change', {bubbles: true}));
"""
OPENED = """
const [address, done] = arguments;
const begun = performance.now();
location.hash = address;
const wait = () => document.documentElement.dataset.ready === address
  ? requestAnimationFrame(() => done(performance.now() - begun)) : setTimeout(wait, 2);
wait();
"""


def write_run(folder: Path, episodes: int, tries: int = 8, turns: int = 10, seed: int = 0) -> Path:
    """A run of made-up episodes, 16 groups an iteration."""
    rng = random.Random(seed)
    (folder / "episodes").mkdir(parents=True)
    groups = episodes // tries
    with (folder / "metrics.jsonl").open("w", encoding="utf-8") as metrics:
        for iteration, first in enumerate(range(0, groups, 16), 1):
            rate = 0.2 + 0.6 * first / groups
            metrics.write(json.dumps({"iteration": iteration, "success_rate": rate}) + "\n")
            with (folder / "episodes" / f"train-{iteration:04d}.jsonl").open("w", encoding="utf-8") as file:
                for group in range(first, min(first + 16, groups)):
                    for sample in range(tries):
                        file.write(json.dumps(_episode(rng, group, sample, turns, rng.random() < rate)) + "\n")
    return folder


def _episode(rng: random.Random, group: int, sample: int, turns: int, won: bool) -> dict[str, Any]:
    place = 0
    played = []
    for _ in range(turns):
        step = rng.randrange(3)
        action = f"go to cabinet {place + step + 1}"
        played.append({"observation": f"You stand at {place}. You see a mug.", "response": action, "action": action})
        place += step
    played[-1]["reward"] = float(won)
    kind = ("pick", "heat", "cool", "clean", "look", "two")[group % 6]
    facts = {"task": f"{kind}-Mug-Shelf-{group}/trial", "task_type": kind, "group": group, "sample": sample}
    return {
        **facts,
        "success": won,
        "outcome": "terminated" if won else "truncated",
        "reward": won * 1.0,
        "turns": played,
    }


def chromium(profile: str) -> Any:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
    for flag in (*flags.split(), f"user-data-dir={profile}", "host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(f"--{flag}")
    options.ignore_local_proxy_environment_variables()  # the driver listens here
    # Browser and driver leave folders in the system's temporary folder when they are ended.
    service = Service(shutil.which("chromedriver"), env={**os.environ, "TMPDIR": profile})
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_page_load_timeout(120)
    driver.set_script_timeout(60)
    return driver


def measure(page: Path, repeat: int) -> dict[str, float]:
    """Milliseconds, medians."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as profile:
        browser = chromium(profile)
        try:
            for _ in range(repeat):
                browser.get("about:blank")
                browser.get(page.as_uri())
                _until(browser, "#/")
                paint = (
                    "return performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? performance.now()"
                )
                found.setdefault("first paint", []).append(browser.execute_script(paint))
                drawn = "return performance.getEntriesByType('mark')[0]?.startTime ?? performance.now()"
                found.setdefault("overview drawn", []).append(browser.execute_script(drawn))
                for table in ("groups", "episodes"):
                    found.setdefault(f"{table} opened", []).append(browser.execute_async_script(OPENED, f"#/{table}"))
                    for name, value in (("task", "mug-shelf-77"), ("type", "heat"), ("source", "train-0040")):
                        spent, told = browser.execute_async_script(FILTERED, name, value)
                        assert told, "the filter said nothing"
                        found.setdefault(f"{table} filtered by {name}", []).append(spent)
                group = "#/group/0/train-0040/3"
                found.setdefault("group opened", []).append(browser.execute_async_script(OPENED, group))
        finally:
            browser.quit()
    return {name: statistics.median(values) for name, values in found.items()}


def _until(browser: Any, address: str) -> None:
    for _ in range(3000):
        if browser.execute_script("return document.documentElement.dataset.ready") == address:
            return
        time.sleep(0.01)
    raise TimeoutError(f"the page {address} was not drawn within 30 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder) / "run", arguments.episodes)
        begun = time.perf_counter()
        page = export([run], Path(folder) / "view")
        written = time.perf_counter() - begun
        size = sum(path.stat().st_size for path in (Path(folder) / "view").rglob("*.js")) / 1e6
        index = (Path(folder) / "view" / "data" / "index.js").stat().st_size / 1e6
        found = measure(page, arguments.repeat)
    print(
        f"{arguments.episodes:,} episodes: written in {written:.1f} s, {size:.0f} MB, of which the index {index:.2f} MB"
    )
    for name, spent in found.items():
        target = FIRST_PAINT if name in ("first paint", "overview drawn") else FILTER if "filtered" in name else None
        verdict = "" if target is None else f"  (target {target:.0f}: {'met' if spent < target else 'MISSED'})"
        print(f"{name:28s} {spent:8.1f} ms{verdict}")
    if arguments.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
