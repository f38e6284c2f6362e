"""How a shopper judges: what it does first on the page of a product that has what is asked for, or has not.

    python -m benchmarks.studies.judged runs/learning/lift-short-pages/gagpo-1/episodes/*-test.jsonl

Reads episodes of the shop of 20,000 products on pages of three results. A row per file and kind of product: within the
budget with every option, above the budget, or without an option; how often the shopper went back, chose an option that
is there, clicked one that is not, and bought as it was.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.studies.opened import CLICK, RESULTS
from gagpo.envs.webshop import expert
from gagpo.envs.webshop.env import WebShopEnv
from gagpo.envs.webshop.pages import Shop

KINDS = ("fits", "too dear", "lacks an option")
FIRST = {"click[< prev]": "back", "click[buy now]": "bought"}


def kind_of(shop: Shop, task: str, product: int) -> str:
    """Whether a product has what the task asks for."""
    state = shop.start(task)._replace(product=product)
    if expert.fits(shop, state, shop.goal(task)):
        return "fits"
    options = expert.options_to_choose(shop, state, shop.goal(task))
    return "too dear" if len(options) == len(shop.goal(task).options) else "lacks an option"


def judged(shop: Shop, episode: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """For every product that is opened its kind, and what is done first on its page."""
    turns = episode["turns"]
    for turn, following in pairwise(turns):
        click = CLICK.fullmatch(turn["action"] or "")
        if RESULTS not in turn["observation"] or not turn["valid"] or not click or not click[1].isdigit():
            continue
        action = following["action"] or ""
        first = FIRST.get(action) or ("an option" if following["valid"] else "one that is not there")
        yield kind_of(shop, episode["task"], shop.store.number(click[1])), first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("episodes", type=Path, nargs="+", help="files of episodes in a run's folder")
    shop = WebShopEnv(split="test", products=20_000, results_per_page=3).shop
    columns = ("back", "an option", "one that is not there", "bought")
    print(f"| file | product | {' | '.join(columns)} |\n|{'---|' * (2 + len(columns))}")
    for path in parser.parse_args().episodes:
        lines = path.read_text(encoding="utf-8").splitlines()
        counts = Counter(pair for line in lines for pair in judged(shop, json.loads(line)))
        for kind in KINDS:
            print(f"| {path.stem} | {kind} | {' | '.join(str(counts[kind, first]) for first in columns)} |")


if __name__ == "__main__":
    main()
