"""Which results a shopper opens, how often it names a product that the page does not show, and what failures lack.

    python -m benchmarks.studies.opened runs/learning/lift-catalogue/gagpo-1/episodes/*-test.jsonl

Reads the episodes that a run has written of its panels. A row per file: episodes, results opened by their place on the
page, clicks on a number that is on no result of the page, products opened in an episode at most; and of the failures
how many bought nothing, a thing above the budget, one without an option or an attribute that was asked for.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = "(Total results:"
NUMBER = re.compile(r"\[SEP\] (\w+) \[SEP\]")
CLICK = re.compile(r"click\[(\w+)\]")


def opened(episode: dict[str, Any]) -> tuple[list[int], int]:
    """The places, from 1, of the results that are opened, in order; clicks on numbers that the page does not show."""
    places, missed = [], 0
    for turn in episode["turns"]:
        page, click = turn["observation"], CLICK.fullmatch(turn["action"] or "")
        if RESULTS not in page or not click or not any(letter.isdigit() for letter in click[1]):
            continue
        shown = NUMBER.findall(page)
        if click[1] in shown:
            places.append(shown.index(click[1]) + 1)
        else:
            missed += 1
    return places, missed


def lacked(episode: dict[str, Any]) -> list[str]:
    """What a failure lacks; nothing for a success."""
    told = episode["info"]
    if episode["success"]:
        return []
    if "bought" not in told:
        return ["a purchase"]
    parts = {"r_price": "the budget", "r_option": "an option", "r_att": "an attribute", "r_type": "the type"}
    return [name for part, name in parts.items() if told.get(part) is not None and float(told[part]) < 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=Path, nargs="+", help="files of episodes in a run's folder")
    print("| file | episodes | opened, by place | numbers not on the page | most opened | failures lack |")
    print("|---|---|---|---|---|---|")
    for path in parser.parse_args().episodes:
        episodes = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [opened(episode) for episode in episodes]
        failures = Counter(name for episode in episodes for name in lacked(episode)).most_common()
        places = Counter(place for one, _ in found for place in one)
        by_place = ", ".join(f"{place}: {count}" for place, count in sorted(places.items()))
        most = max((len(set(one)) for one, _ in found), default=0)
        wrong, lacking = sum(missed for _, missed in found), ", ".join(f"{name} {count}" for name, count in failures)
        print(f"| {path.stem} | {len(found)} | {by_place} | {wrong} | {most} | {lacking} |")


if __name__ == "__main__":
    main()
