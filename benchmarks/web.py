"""How fast is gagpo/Web-v0 on MiniWoB++, next to the package's own environment and to BrowserGym.

    python -m benchmarks.web [--episodes 3] [--rounds 4] [--actions expert] [--browsergym PYTHON] [--out FILE]

All do the same tasks without screenshots, with the actions of the experts (episodes of two to three turns) or with
random clicks (eight turns). They take turns after every kind, so that other work on the machine slows all of them, and
change their order after every round. A ratio is that of the sums over a round; the median round counts.
``--browsergym`` names the Python of an environment with ``browsergym-miniwob``, whose Playwright is pointed at the
Chromium of this machine; it clicks at random, and its CPU time is not measured.
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
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

KINDS = (
    *("click-button", "click-checkboxes", "click-link", "click-option", "click-tab-2", "enter-text"),
    *("enter-password", "login-user", "navigate-tree", "search-engine"),
)
TURNS = 8  # of an episode
OURS = "gagpo/Web-v0"

# Run by another interpreter, which has other packages; the folder of the pages is its argument.
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


@dataclass(frozen=True)
class Count:
    """Steps, and what they and their resets took; starting a browser does not count.

    seconds: of the clock.
    cpu: seconds of this process and all processes below it; 0 if unknown.
    """

    steps: int = 0
    seconds: float = 0.0
    cpu: float = 0.0

    def __add__(self, other: Count) -> Count:
        return Count(self.steps + other.steps, self.seconds + other.seconds, self.cpu + other.cpu)


class Meter:
    """Measures what passes in a ``with`` block."""

    def __enter__(self) -> Meter:
        self._cpu = _cpu_seconds()
        self._begun = time.perf_counter()  # last, because the list of processes takes long on a busy machine
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._begun
        self.cpu = _cpu_seconds() - self._cpu


def _cpu_seconds() -> float:
    root = psutil.Process()
    return sum(sum(process.cpu_times()[:2]) for process in [root, *root.children(recursive=True)])


Player = Callable[[str, int], Count]
"""Does a number of episodes of one kind of page."""


class Package:
    """gagpo/Web-v0, one browser for all kinds."""

    def __init__(self, expert: bool):
        from gagpo.envs.web.env import WebEnv

        self.expert = expert
        self.env = WebEnv(tasks=list(KINDS), level="all", unseen=[], max_turns=TURNS, expert=expert)

    def play(self, kind: str, episodes: int) -> Count:
        rng = random.Random(kind)
        steps = 0
        self.env.reset(options={"task": f"{kind}.000000"})
        with Meter() as meter:
            for seed in range(episodes):
                _, info = self.env.reset(options={"task": f"{kind}.{seed:06d}"})
                over = False
                while not over:
                    _, _, terminated, truncated, info = self.env.step(self._action(info, rng))
                    steps += 1
                    over = terminated or truncated
        return Count(steps, meter.seconds, meter.cpu)

    def _action(self, info: dict[str, Any], rng: random.Random) -> str:
        if self.expert:
            return str(info["expert_action"])
        clicks = [action for action in info["admissible_actions"] if action.startswith("click")]
        return rng.choice(clicks or info["admissible_actions"])

    def experts_actions(self, kind: str, episodes: int) -> list[list[Aimed]]:
        """For each seed, where the expert clicks and what it types there."""
        from gagpo.envs.web.actions import parse

        by_seed = []
        for seed in range(episodes):
            _, info = self.env.reset(options={"task": f"{kind}.{seed:06d}"})
            actions: list[Aimed] = []
            over = False
            while not over:
                command = parse(info["expert_action"])
                spot = self.env.browser.evaluate(f"__gagpo.aim({command.number})")
                actions.append((spot["x"], spot["y"], command.text))
                _, _, terminated, truncated, info = self.env.step(info["expert_action"])
                over = terminated or truncated
            by_seed.append(actions)
        return by_seed


Aimed = tuple[float, float, str]
"""A point of the page, and the text to type there; empty for a click."""


def bare_player(experts: Callable[[str, int], list[list[Aimed]]] | None) -> Player:
    """The package's own environment; it has one browser for each kind. experts: None for random clicks."""
    os.environ["MINIWOB_CHROME_BINARY"] = shutil.which("chromium") or ""
    os.environ["MINIWOB_CHROMEDRIVER"] = shutil.which("chromedriver") or ""
    import gymnasium
    import miniwob

    gymnasium.register_envs(miniwob)

    def play(kind: str, episodes: int) -> Count:
        env: Any = gymnasium.make(f"miniwob/{kind}-v1", disable_env_checker=True).unwrapped
        rng = random.Random(kind)
        quiet = {"record_screenshots": False}
        by_seed = experts(kind, episodes) if experts is not None else [[]] * episodes
        steps = 0
        rewards = 0.0
        env.reset(seed=0, options=quiet)
        with Meter() as meter:
            for seed, actions in enumerate(by_seed):
                observation, _ = env.reset(seed=seed, options=quiet)
                for turn in range(len(actions) or TURNS):
                    aimed = actions[turn] if actions else None
                    observation, _, terminated, truncated, info = env.step(bare_action(env, observation, aimed, rng))
                    steps += 1
                    if terminated or truncated:
                        rewards += info.get("raw_reward", 0.0)
                        break
        env.close()
        if experts is not None and rewards < episodes:
            raise SystemExit(f"miniwob/{kind}: the experts' actions earned {rewards:g} of {episodes}")
        return Count(steps, meter.seconds, meter.cpu)

    return play


def bare_action(env: Any, observation: dict[str, Any], aimed: Aimed | None, rng: random.Random) -> Any:
    """An action of the package's own: at the smallest element of a point, or at a random one."""
    elements = [element for element in observation["dom_elements"] if element["ref"] > 0]
    if aimed is None:
        return env.create_action("CLICK_ELEMENT", ref=rng.choice(elements)["ref"])
    x, y, text = aimed
    if not text:
        return env.create_action("CLICK_COORDS", coords=np.array([x, y], dtype=np.float32))

    def area(element: dict[str, Any]) -> float:
        return float(element["width"].item() * element["height"].item())

    at_point = [
        element
        for element in elements
        if 0 <= x - element["left"].item() <= element["width"].item()
        and 0 <= y - element["top"].item() <= element["height"].item()
    ]
    return env.create_action("FOCUS_ELEMENT_AND_TYPE_TEXT", ref=min(at_point, key=area)["ref"], text=text)


def browsergym_player(python: str) -> Player:
    """BrowserGym's MiniWoB in another interpreter."""
    from gagpo.envs.web.miniwob.source import package_folder

    def play(kind: str, episodes: int) -> Count:
        program = os.path.realpath(shutil.which("chromium") or "")
        arguments = [str(package_folder()), program, json.dumps([[kind], episodes, TURNS])]
        out = subprocess.run([python, "-c", _BROWSERGYM, *arguments], check=True, capture_output=True, text=True)
        steps, seconds = json.loads(out.stdout.splitlines()[-1])
        return Count(steps, seconds)

    return play


@contextmanager
def private_temporary_folder() -> Iterator[None]:
    """A folder for what the other packages' browsers leave behind when they are ended."""
    before = os.environ.get("TMPDIR")
    with tempfile.TemporaryDirectory(prefix="t", ignore_cleanup_errors=True) as folder:
        os.environ["TMPDIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TMPDIR")
            if before is not None:
                os.environ["TMPDIR"] = before


def measure(players: dict[str, Player], episodes: int, rounds: int) -> dict[str, list[Count]]:
    """One sum over all kinds for each round and player."""
    counts: dict[str, list[Count]] = {name: [] for name in players}
    for number in range(rounds):
        totals = dict.fromkeys(players, Count())
        order = list(players.items())[:: -1 if number % 2 else 1]
        for kind in KINDS:
            for name, play in order:
                totals[name] += play(kind, episodes)
        for name, total in totals.items():
            counts[name].append(total)
            print(f"round {number + 1}: {name}: {total}", file=sys.stderr)
    return counts


def summary(counts: dict[str, list[Count]]) -> dict[str, dict[str, float]]:
    """Medians over the rounds: steps per second, CPU milliseconds per step, and how many times as fast gagpo is."""
    result: dict[str, dict[str, float]] = {}
    for name, rows in counts.items():
        result[name] = {"steps_per_second": round(statistics.median(row.steps / row.seconds for row in rows), 2)}
        pairs = list(zip(counts[OURS], rows, strict=True))
        speedups = [package.steps / package.seconds * row.seconds / row.steps for package, row in pairs]
        result[name]["gagpo_times_as_fast"] = round(statistics.median(speedups), 2)
        if all(row.cpu for row in rows):
            costs = [row.cpu / row.steps * package.steps / package.cpu for package, row in pairs]
            result[name]["cpu_ms_per_step"] = round(1e3 * statistics.median(row.cpu / row.steps for row in rows), 1)
            result[name]["cpu_times_gagpo"] = round(statistics.median(costs), 2)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=3, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--actions", choices=["expert", "random"], default="expert")
    parser.add_argument("--browsergym", metavar="PYTHON", help="an interpreter with browsergym-miniwob")
    parser.add_argument("--out", type=Path, help="file for the result")
    options = parser.parse_args()
    package = Package(expert=options.actions == "expert")
    players: dict[str, Player] = {
        OURS: package.play,
        "miniwob": bare_player(package.experts_actions if package.expert else None),
    }
    if options.browsergym:
        players["BrowserGym"] = browsergym_player(options.browsergym)
    with private_temporary_folder():
        try:
            counts = measure(players, options.episodes, options.rounds)
        finally:
            package.env.close()
    result = json.dumps(summary(counts), indent=1)
    print(result)
    if options.out:
        options.out.write_text(result + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
