"""The tasks of the package ``miniwob``: a seed of a kind of page is a task."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from gagpo.base.errors import InvalidArgument
from gagpo.base.nearest import hint
from gagpo.envs.plain import seed_ranges
from gagpo.envs.tasks import Task
from gagpo.envs.web.actions import Command
from gagpo.envs.web.browser import Browser
from gagpo.envs.web.errors import BrowserMissing
from gagpo.envs.web.miniwob.experts import EXPERTS
from gagpo.envs.web.server import Files
from gagpo.envs.web.source import Standing

LEVELS = ("easy", "all")
UNSEEN_KINDS = (
    *("click-checkboxes-large", "click-collapsible-2", "click-tab-2-hard", "email-inbox-important"),
    *("enter-text-2", "login-user-popup", "social-media-some"),
)
"""Kinds of the level ``easy`` that are left out of training by default."""
TIME_IS_OVER = -1.0
"""Reward of an episode that the turn limit ends: what MiniWoB++ gives when its clock runs out."""
SEEDS: Mapping[str, str] = {"train": "0-199", "test": "100000-100019"}

REPEATED = frozenset(
    [
        "choose-list",
        "click-button",
        "click-button-sequence",
        "click-link",
        "click-scroll-list",
        "click-test",
        "click-test-2",
        "click-test-transfer",
        "enter-date",
        "enter-password",
        "enter-text",
        "enter-text-2",
        "enter-text-dynamic",
        "enter-time",
        "focus-text",
        "focus-text-2",
        "login-user",
        "login-user-popup",
        "read-table",
        "read-table-2",
        "simple-algebra",
        "simple-arithmetic",
        "text-transform",
        "unicode-test",
    ]
)
"""Kinds whose page is used again for the next episode where the last one has left nothing in it.

Others number their elements over all episodes, or keep what was opened, and are loaded again for each. The list is
fixed, because a page that has begun a first episode may not equal one that has begun none.
"""
_FRAME = "#query, #reward-display, #sync-task-cover, #click-canvas"
# The page's own limit of ten seconds is lifted. Its timers are cleared but stay set, which marks an episode that runs.
_BEGIN = """
(() => {{
  core.EPISODE_MAX_TIME = 1e9;
  Math.seedrandom({seed});
  core.startEpisodeReal();
  clearTimeout(core.EP_TIMER);
  core.clearTimer();
  const query = core.getUtterance();
  return query.utterance ?? query;
}})()
"""
# The same episode, and the display of rewards as it is after loading.
_FIXED = """
(() => {{
  [core.wob_latest, core.wob_scores, WOB_EPISODE_ID] = ['-', [], 0];
  document.getElementById('reward-display').innerHTML = core.DISPLAY_HTML;
  document.querySelectorAll('[data-tampered]').forEach((element) => delete element.dataset.tampered);
  return ({begin});
}})()
"""
# Some pages remember clicks where nobody sees them; the package marks every element that was clicked.
_OUTCOME = """
[WOB_DONE_GLOBAL, WOB_RAW_REWARD_GLOBAL,
 Array.from(document.querySelectorAll('*')).flatMap((element, place) => element.dataset.tampered ? [place] : [])]
"""


class MiniWoB:
    """MiniWoB++ (PyPI ``miniwob``).

    The reward is the page's raw reward (-1 to 1), which does not depend on the time; success is a reward of 1. The
    split ``test`` has other seeds of the trained kinds, ``unseen_kinds`` has kinds without a training task.

    tasks: the kinds to train on, such as ``click-tab-2``; by default all of ``level`` but ``unseen``.
    level: ``easy`` for the kinds with an expert, which consist of text; ``all`` for all kinds.
    unseen: the kinds of the split ``unseen_kinds``; by default those of :data:`UNSEEN_KINDS` that are not trained.
    seeds: for ``train`` and ``test``, the seeds of each kind as an inclusive range.

    Raises:
        BrowserMissing: the package is not installed.
        InvalidArgument: an unknown kind or level, or a kind that is both trained and unseen.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "test", "unseen_kinds")

    def __init__(
        self,
        tasks: Sequence[str] | None = None,
        level: str = "easy",
        unseen: Sequence[str] | None = None,
        seeds: Mapping[str, str] = SEEDS,
    ):
        if level not in LEVELS:
            raise InvalidArgument(f"unknown level {level!r:.80}", advice=f"choose {' or '.join(LEVELS)}")
        if not isinstance(seeds, Mapping) or set(seeds) != {"train", "test"}:
            raise InvalidArgument(
                "seeds must have the entries train and test, such as {train: 0-199, test: 1000-1019}", key="seeds"
            )
        self.folder = package_folder()
        self.level = level
        self.unseen = self._require_kinds("unseen", UNSEEN_KINDS if unseen is None else unseen)
        everything = sorted(EXPERTS) if level == "easy" else self.kinds
        chosen = [task_type for task_type in everything if task_type not in self.unseen] if tasks is None else tasks
        self.trained = self._require_kinds("tasks", chosen)
        if not self.trained:
            raise InvalidArgument("tasks must name at least one kind", key="tasks")
        if unseen is None:
            self.unseen = [task_type for task_type in self.unseen if task_type not in self.trained]
        both = sorted(set(self.trained) & set(self.unseen))
        if both:
            raise InvalidArgument(
                f"{both[0]} is in tasks and in unseen", key="tasks", advice="remove it from one of them"
            )
        self.seeds = seed_ranges(seeds)
        self._pages = Files(self.folder, lasting=True)
        self._kind = self._instruction = ""
        self._over = False

    @cached_property
    def kinds(self) -> list[str]:
        """All kinds, sorted."""
        return sorted(path.stem for path in (self.folder / "miniwob").glob("*.html"))

    def tasks(self, split: str) -> Iterable[Task]:
        task_types = self.unseen if split == "unseen_kinds" else self.trained
        seeds = self.seeds["train" if split == "train" else "test"]
        edition = version("miniwob")
        return [
            Task(f"{task_type}.{seed:06d}", split, task_type, digest=f"miniwob {edition} {task_type} seed {seed}")
            for task_type in task_types
            for seed in seeds
        ]

    def open(self, browser: Browser, task: Task) -> str:
        task_type, _, seed = task.id.rpartition(".")
        self._kind = task_type
        self._over = False
        begin = _BEGIN.format(seed=int(seed))  # a number, as in the package: a text would be another task
        fixed = _FIXED.format(begin=_BEGIN.format(seed=0)) if task_type in REPEATED else ""
        path = f"/miniwob/{task_type}.html"
        instruction = browser.open(path, self._pages, _FRAME, prepare=begin, probe=_OUTCOME, fixed=fixed)
        self._instruction = str(instruction)
        return self._instruction

    def outcome(self, browser: Browser) -> Standing:
        over, reward, clicked = browser.page.probe
        self._over = bool(over)
        if not over:
            return Standing(state=json.dumps(clicked), truncated_reward=TIME_IS_OVER)
        reward = float(reward) if isinstance(reward, int | float) and math.isfinite(reward) else 0.0
        return Standing(reward, over=True, success=reward >= 1.0, state=f"over {reward:g}")

    def expert(self, browser: Browser) -> Command | None:
        find = EXPERTS.get(self._kind)
        return None if find is None or self._over else find(self._instruction, browser.page)

    def _require_kinds(self, name: str, kinds: Any) -> list[str]:
        if isinstance(kinds, str) or not isinstance(kinds, Sequence):
            raise InvalidArgument(
                f"{name} must be a list of kinds, such as [click-button, enter-text] (got {kinds!r:.80})", key=name
            )
        for task_type in kinds:
            if task_type not in self.kinds:
                raise InvalidArgument(
                    f"{name}: there is no MiniWoB++ task {task_type!r:.80}",
                    key=name,
                    advice=hint(str(task_type), self.kinds),
                )
        return sorted(set(kinds))


def package_folder() -> Path:
    """The folder of the package's pages; raises BrowserMissing. The package itself is not imported."""
    spec = importlib.util.find_spec("miniwob")
    if spec is None or spec.origin is None:
        raise BrowserMissing(
            "source miniwob needs the package miniwob", advice="pip install -c constraints.txt -e '.[web]'"
        )
    return Path(spec.origin).parent / "html"
