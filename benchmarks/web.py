"""How fast is gagpo/Web-v0 on MiniWoB++, next to the package's own environment and to BrowserGym.

    python -m benchmarks.web [--episodes 3] [--rounds 3] [--browsergym PYTHON] [--out FILE]

All three play random clicks from the same seeds on the same kinds of tasks, without screenshots. They take turns, and
the median round counts. ``--browsergym`` names the Python of an environment with ``browsergym-miniwob``, whose
Playwright is pointed at the Chromium of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KINDS = (
    *("click-button", "click-checkboxes", "click-link", "click-option", "click-tab-2", "click-widget"),
    *("email-inbox-delete", "enter-password", "search-engine", "social-media-all"),
)
TURNS = 8  # of an episode

# Played by another interpreter, which has other packages; the folder of the pages is its argument.
_BROWSERGYM = """
import json, os, random, re, sys, time
import playwright.sync_api as api
launch = api.BrowserType.launch
api.BrowserType.launch = lambda self, **options: launch(
    self, **{**options, "executable_path": sys.argv[2], "args": [*(options.get("args") or []), "--no-sandbox"]})
os.environ["MINIWOB_URL"] = "file://" + sys.argv[1] + "/miniwob/"
import gymnasium, browsergym.miniwob
kinds, episodes, turns = json.loads(sys.argv[3])
seconds, steps = 0.0, 0
for kind in kinds:
    env = gymnasium.make("browsergym/miniwob." + kind, headless=True, disable_env_checker=True)
    rng = random.Random(kind)
    env.reset(seed=0)
    for seed in range(episodes):
        begun = time.perf_counter()
        observation, info = env.reset(seed=seed)
        for turn in range(turns):
            ids = [bid for bid, seen in observation["extra_element_properties"].items() if seen["clickable"]]
            action = "click('%s')" % rng.choice(ids) if ids else "noop()"
            observation, reward, terminated, truncated, info = env.step(action)
            steps += 1
            if terminated or truncated:
                break
        seconds += time.perf_counter() - begun
    env.close()
print(json.dumps([steps, seconds]))
"""

Count = tuple[int, float]
"""Steps, and the seconds that they and their resets took; starting a browser does not count."""


def measure_gagpo(episodes: int) -> Count:
    """gagpo/Web-v0, one browser for all kinds."""
    from gagpo.envs.web.env import WebEnv

    env = WebEnv(tasks=list(KINDS), level="all", unseen=[], max_turns=TURNS)
    steps, seconds = 0, 0.0
    try:
        for kind in KINDS:
            rng = random.Random(kind)
            env.reset(options={"task": f"{kind}.000000"})
            for seed in range(episodes):
                begun = time.perf_counter()
                _, info = env.reset(options={"task": f"{kind}.{seed:06d}"})
                over = False
                while not over:
                    clicks = [action for action in info["admissible_actions"] if action.startswith("click")]
                    _, _, terminated, truncated, info = env.step(rng.choice(clicks or info["admissible_actions"]))
                    steps += 1
                    over = terminated or truncated
                seconds += time.perf_counter() - begun
    finally:
        env.close()
    return steps, seconds


def bare(episodes: int) -> Count:
    """The package's own environment; it has one browser for each kind."""
    os.environ["MINIWOB_CHROME_BINARY"] = shutil.which("chromium") or ""
    os.environ["MINIWOB_CHROMEDRIVER"] = shutil.which("chromedriver") or ""
    import gymnasium
    import miniwob

    gymnasium.register_envs(miniwob)
    steps, seconds = 0, 0.0
    for kind in KINDS:
        env: Any = gymnasium.make(f"miniwob/{kind}-v1", disable_env_checker=True).unwrapped
        rng = random.Random(kind)
        quiet = {"record_screenshots": False}
        env.reset(seed=0, options=quiet)
        for seed in range(episodes):
            begun = time.perf_counter()
            observation, _ = env.reset(seed=seed, options=quiet)
            for _ in range(TURNS):
                refs = [element["ref"] for element in observation["dom_elements"] if element["ref"] > 0]
                action = env.create_action("CLICK_ELEMENT", ref=rng.choice(refs))
                observation, _, terminated, truncated, _ = env.step(action)
                steps += 1
                if terminated or truncated:
                    break
            seconds += time.perf_counter() - begun
        env.close()
    return steps, seconds


def browsergym(python: str) -> Callable[[int], Count]:
    """BrowserGym's MiniWoB in another interpreter."""
    from gagpo.envs.web.miniwob.source import package_folder

    def play(episodes: int) -> Count:
        program = os.path.realpath(shutil.which("chromium") or "")
        arguments = [str(package_folder()), program, json.dumps([KINDS, episodes, TURNS])]
        out = subprocess.run([python, "-c", _BROWSERGYM, *arguments], check=True, capture_output=True, text=True)
        steps, seconds = json.loads(out.stdout.splitlines()[-1])
        return steps, seconds

    return play


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=3, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--browsergym", metavar="PYTHON", help="an interpreter with browsergym-miniwob")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    plays: dict[str, Callable[[int], Count]] = {"gagpo/Web-v0": measure_gagpo, "miniwob": bare}
    if options.browsergym:
        plays["BrowserGym"] = browsergym(options.browsergym)
    rates: dict[str, list[float]] = {name: [] for name in plays}
    for number in range(options.rounds):
        for name, play in plays.items():
            steps, seconds = play(options.episodes)
            rates[name].append(steps / seconds)
            print(f"round {number + 1}: {name} {steps} steps in {seconds:.1f} s", file=sys.stderr)
    medians = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    ratios = {f"times {name}": round(medians["gagpo/Web-v0"] / value, 2) for name, value in medians.items()}
    result = json.dumps({"steps_per_second": medians, "gagpo/Web-v0": ratios}, indent=1)
    print(result)
    if options.out:
        options.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
