"""``gagpo/WebShop-v0``: the shop as a text environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar, Literal

from gagpo.base.errors import InvalidArgument
from gagpo.base.folders import data_folder
from gagpo.envs.base import Info, Kwargs, MarkovKey, Outcome, TextEnv
from gagpo.envs.tasks import Task, TaskSet
from gagpo.envs.webshop import expert
from gagpo.envs.webshop.catalogue import find_sources
from gagpo.envs.webshop.generate import generated_folder
from gagpo.envs.webshop.goals import KINDS
from gagpo.envs.webshop.pages import DONE, PageState, Shop, parse_action
from gagpo.envs.webshop.render import address, text, text_rich
from gagpo.envs.webshop.store import Store, open_store, store_for

DATA_VARIABLE = "WEBSHOP_DATA"
MODES = {"text": text, "text_rich": text_rich}
"""How the elements of a page are shown, by the name of the observation."""


def webshop_folder() -> Path:
    """The folder of generated catalogues and built stores: ``$GAGPO_DATA/webshop``, by default ``data/webshop``."""
    return data_folder() / "webshop"


def open_catalogue(
    data: str | Path | None = None, products: int = 1_000, catalogue_seed: int = 0, exact: bool = False
) -> Store:
    """Open the store of a catalogue. The first call builds it, which takes minutes for a large catalogue.

    data: a folder of data files or a product file; ``official`` for the folder that ``$WEBSHOP_DATA`` names; by
        default that folder, and if the variable is not set, a generated catalogue.
    products: size of the generated catalogue.
    catalogue_seed: for the generated products, and for prices and budgets in any catalogue.
    exact: use the published environment's texts, goals and search.

    Raises:
        InvalidArgument: if ``data`` is ``official`` and ``$WEBSHOP_DATA`` is not set.
    """
    root = webshop_folder()
    official_folder = os.environ.get(DATA_VARIABLE)
    if data == "official" and not official_folder:
        raise InvalidArgument(
            "data=official requires the original WebShop files",
            key="data",
            advice=f"set ${DATA_VARIABLE} to their folder (docs/environments.md, WebShop)",
        )
    source = official_folder if data in (None, "", "official") else data
    if source:
        folder = Path(source)
    else:
        folder = generated_folder(root, products, catalogue_seed)
    return open_store(store_for(find_sources(folder), root, catalogue_seed), exact)


class WebShopEnv(TextEnv):
    """Find a product that an instruction describes, choose its options, and buy it.

    Actions are ``search[words]`` and ``click[label]``. Other text, and a click on a label that the page does not have,
    changes nothing. Buying ends the episode and pays the reward of ``gagpo.envs.webshop.reward`` (0 to 1).

    observation: ``text`` or ``text_rich``.
    goals: ``synthetic`` or ``human``.
    data, products, catalogue_seed: see :func:`open_catalogue`.
    results_per_page: 10 in the published environment.
    exact: behave exactly as the published environment, for comparisons with its numbers.
    expert_mode: an expert that knows the goal's product (``oracle``), or opens the results one by one (``browsing``).

    ``info`` also holds ``has_search_bar`` (only the first page has one, but searching works on every page), and after
    a purchase ``r_type``, ``r_att``, ``r_option`` (None if the goal names no option), ``r_price``, ``title_score`` and
    ``bought``. ``admissible_actions`` lists the clicks and, on the first page, a search for the instruction; other
    searches are valid, too. ``state`` is the address of the page, which contains its whole state.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "validation", "test")
    choosing: ClassVar[frozenset[str]] = frozenset({"data", "products", "catalogue_seed", "goals"})
    immaterial: ClassVar[frozenset[str]] = TextEnv.immaterial | {"expert_mode"}
    has_imperfect: ClassVar[bool] = True
    markov_key: ClassVar[MarkovKey] = "state"
    instructions: ClassVar[str] = (
        "You are shopping online. Find a product that fits the instruction, choose the options it asks for, and buy "
        "it. You act by one command at a time: search[words] looks for products, click[label] presses something on "
        "the page."
    )

    def __init__(
        self,
        split: str = "train",
        max_turns: int = 15,
        expert: bool | str = False,
        render_mode: str | None = None,
        *,
        observation: str = "text",
        goals: str = "synthetic",
        data: str | Path | None = None,
        products: int = 1_000,
        catalogue_seed: int = 0,
        results_per_page: int = 10,
        exact: bool = False,
        expert_mode: Literal["oracle", "browsing"] = "oracle",
    ):
        super().__init__(split=split, max_turns=max_turns, expert=expert, render_mode=render_mode)
        if observation not in MODES:
            raise InvalidArgument(f"unknown observation {observation!r}", advice=f"choose one of {', '.join(MODES)}")
        if goals not in KINDS:
            raise InvalidArgument(f"unknown goals {goals!r}", advice=f"choose one of {', '.join(KINDS)}")
        if exact and results_per_page != 10:
            raise InvalidArgument(
                f"exact=True requires results_per_page=10, got {results_per_page}", key="results_per_page"
            )
        if expert_mode not in ("oracle", "browsing"):
            raise InvalidArgument(f"expert_mode must be 'oracle' or 'browsing', got {expert_mode!r}", key="expert_mode")
        self.mode = observation
        self.goals = goals
        self.store = open_catalogue(data, products, catalogue_seed, exact)
        self.shop = Shop(self.store, results_per_page, exact)
        self.state = PageState("")
        self.expert_mode = expert_mode
        self._opened_products: set[int] = set()

    @classmethod
    def cheap(cls, kwargs: Kwargs) -> bool:
        """Pages have bounded texts, and a search is one pass over an index in memory."""
        return True

    @classmethod
    def without_effect(cls, kwargs: Kwargs) -> frozenset[str]:
        source = kwargs.get("data") or os.environ.get(DATA_VARIABLE)
        return frozenset({"products"} if source else ())

    def tasks(self, split: str) -> TaskSet:
        if split not in self.splits:
            raise InvalidArgument(
                f"WebShopEnv has no split {split!r}", advice=f"choose one of {', '.join(self.splits)}"
            )
        return self.store.tasks(self.goals, split)

    def begin(self, task: Task) -> Outcome:
        self.state = self.shop.start(task.id)
        self._opened_products = set()
        return self._outcome()

    def act(self, action: str) -> Outcome:
        state = self.follow(action)
        if state is None:
            # The published environment offers labels with brackets, which it cannot parse: such a click is valid.
            labels = self.shop.page(self.state).clickables
            return self._outcome(valid=self.shop.exact and action in [f"click[{label}]" for label in labels])
        self.state = state
        if state.product >= 0:
            self._opened_products.add(state.product)
        return self._outcome()

    def follow(self, action: str) -> PageState | None:
        """The state after ``action``, or None if it is not an action of this page."""
        parsed = parse_action(action, self.shop.exact)
        if parsed is None:
            return None
        name, argument = parsed
        if name == "search":
            return self.shop.search(self.state, argument)
        return self.shop.click(self.state, argument)

    def expert_action(self) -> str | None:
        if self.expert_mode == "browsing":
            return expert.browse(self.shop, self.state, self._opened_products, self.imperfect)
        return expert.next_action(self.shop, self.state, self.imperfect)

    def _outcome(self, valid: bool = True) -> Outcome:
        page = self.shop.page(self.state)
        actions = [f"click[{label}]" for label in page.clickables]
        if page.has_search_bar:
            actions.insert(0, f"search[{self.shop.goal(self.state.task).instruction}]")
        extras: Info = {"has_search_bar": page.has_search_bar}
        outcome = Outcome(
            MODES[self.mode](page.elements),
            valid=valid,
            state=address(self.shop, page.state),
            admissible_actions=actions,
            extras=extras,
        )
        if page.state.kind == DONE:
            verdict = self.shop.verdict(page.state)
            outcome.reward = verdict.reward
            outcome.success = verdict.success
            outcome.terminated = True
            extras["bought"] = self.store.product(page.state.product).asin
            for name in ("r_type", "r_att", "r_option", "r_price", "title_score"):
                extras[name] = getattr(verdict, name)
        return outcome
