"""How a shopper judges: what it does first on the page of a product that has what is asked for, or has not.

    python -m benchmarks.studies.judged runs/learning/lift-short-pages/gagpo-1/episodes/*-test.jsonl

Reads episodes of the shop of 20,000 products on pages of three results. A row per file and kind of product: within the
budget with every option, above the budget, or without an option; how often the shopper went back, chose an option that
is there, clicked one that is not, and bought as it was; of the clicks on one that is not there the median of how likely
they were, each by its least likely token, where the file has tokens. Then how often it goes back after a refused turn.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.studies.opened import CLICK, RESULTS
from gagpo.envs.webshop import expert
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.pages import Shop

KINDS = ("fits", "too dear", "lacks an option")
ABSENT = "one that is not there"
FIRST = {"click[< prev]": "back", "click[buy now]": "bought"}


def kind_of(shop: Shop, task: str, product: int) -> str:
    """Whether a product has what the task asks for."""
    state = shop.start(task)._replace(product=product)
    if expert.fits(shop, state, shop.goal(task)):
        return "fits"
    options = expert.options_to_choose(shop, state, shop.goal(task))
    return "too dear" if len(options) == len(shop.goal(task).options) else "lacks an option"


def judged(shop: Shop, episode: dict[str, Any]) -> Iterator[tuple[str, str, float]]:
    """For every product that is opened its kind, what is done first on its page, and how likely that was."""
    turns = episode["turns"]
    for turn, following in pairwise(turns):
        click = CLICK.fullmatch(turn["action"] or "")
        if RESULTS not in turn["observation"] or not turn["valid"] or not click or not click[1].isdigit():
            continue
        action = following["action"] or ""
        first = FIRST.get(action) or ("an option" if following["valid"] else ABSENT)
        likely = math.exp(min(following.get("tokens", {}).get("logprob", [math.nan])))
        yield kind_of(shop, episode["task"], shop.store.number(click[1])), first, likely


def after_refusals(episode: dict[str, Any]) -> Iterator[bool]:
    """For every refused turn but a last one, whether the next one goes back."""
    for turn, following in pairwise(episode["turns"]):
        if not turn["valid"]:
            yield FIRST.get(following["action"] or "") == "back"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=Path, nargs="+", help="files of episodes in a run's folder")
    shop = WebShopEnv(split="test", products=20_000, results_per_page=3).shop
    columns = ("back", "an option", ABSENT, "bought")
    print(f"| file | product | {' | '.join(columns)} | likely, median |\n|{'---|' * (3 + len(columns))}")
    back = []
    for path in parser.parse_args().episodes:
        episodes = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found = [one for episode in episodes for one in judged(shop, episode)]
        after = [one for episode in episodes for one in after_refusals(episode)]
        back.append(f"{path.stem}: goes back after {sum(after)} of {len(after)} refused turns")
        for kind in KINDS:
            counts = Counter(first for of, first, _ in found if of == kind)
            likely = [chance for of, first, chance in found if (of, first) == (kind, ABSENT)]
            shown = f"{median(likely):.2f}" if likely and not math.isnan(likely[0]) else ""
            print(f"| {path.stem} | {kind} | {' | '.join(str(counts[first]) for first in columns)} | {shown} |")
    print("", *back, sep="\n")


if __name__ == "__main__":
    main()
