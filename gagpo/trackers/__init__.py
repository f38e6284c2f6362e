"""Where the numbers of a run go besides its folder: TensorBoard, trackio, wandb, or one of your own."""

from gagpo.trackers.base import Tracker, Trackers, plain_numbers, sample_text
from gagpo.trackers.registry import TRACKERS, tracking

__all__ = ["TRACKERS", "Tracker", "Trackers", "plain_numbers", "sample_text", "tracking"]
