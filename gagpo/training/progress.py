"""Progress within an iteration: the episodes that have ended, and the updates that have been made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gagpo.base.progress import track
from gagpo.collecting.collector import OnEpisode
from gagpo.data import Episode
from gagpo.learning.update import OnStep
from gagpo.settings import RunSettings


class IterationProgress:
    """Bars in a terminal. A pipe gets a line a minute, because every iteration prints a line at its end.

    rounds: maximum number of rounds of dynamic sampling, each of which may sample a whole batch.
    """

    def __init__(self, settings: RunSettings, rounds: int, quiet: bool):
        self._iterations = settings.training.iterations
        self._episodes = settings.rollout.tasks * settings.rollout.group_size * rounds
        self._updates = settings.training.epochs * settings.training.minibatches
        self._bound = rounds > 1
        self._quiet = quiet
        self._last_mean = ""  # of the iteration before

    @contextmanager
    def collecting(self, iteration: int) -> Iterator[OnEpisode]:
        """Show the collection of an iteration, from 1; the block gets the function to call with each episode.

        The mean reward is that of the iteration before until all episodes have ended: those that succeed end first, so
        a mean of those that have ended would be too high for most of the time.
        """
        label = self._label(iteration)
        with track(label, self._episodes, "episodes", self._quiet, bound=self._bound, inner=True) as meter:
            total = 0.0

            def on_episode(episode: Episode) -> None:
                nonlocal total
                total += episode.reward
                done = meter.done + 1
                meter.advance(note=f"mean reward {total / done:.3f}" if done == meter.total else self._last_mean)

            yield on_episode
            self._last_mean = f"mean reward {total / max(meter.done, 1):.3f} in iteration {iteration}"

    @contextmanager
    def updating(self, iteration: int) -> Iterator[OnStep]:
        """Show the updates of an iteration, from 1; the block gets the function to call after each."""
        with track(self._label(iteration), self._updates, "updates", self._quiet, inner=True) as meter:

            def on_step(done: int, total: int, rate: float) -> None:
                if total != meter.total:  # fewer rows than mini-batches
                    meter.resize(total)
                meter.advance(done - meter.done, f"learning rate {rate:.1e}")

            yield on_step

    def _label(self, iteration: int) -> str:
        return f"iteration {iteration} of {self._iterations}"
