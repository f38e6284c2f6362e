"""From token rows and their credit to optimiser steps.

1. ``batch`` makes rows from episodes, and mini-batches from rows; ``packing`` distributes them over ranks and lays
   them out as micro-batches.
2. ``forward`` computes log-probabilities (``logprobs``), values and the reference's log-probabilities.
3. ``loss`` computes the objective of a micro-batch.
4. ``update`` accumulates and clips gradients and takes or skips the step (``optimizer``, ``skipped_steps``).
5. ``metrics`` gathers what is logged.
"""
