"""From rows of tokens and their credit to optimiser steps.

In the order of an update:

1. ``batch``: the turns of episodes become rows, rows mini-batches. ``sharded_batches`` gives each rank its part, and
   ``packing`` lays it out as micro-batches without padding, with shared prefixes once.
2. ``forward``: log-probabilities (``logprobs``), values (``critic``) and the reference's log-probabilities.
3. ``loss``: the objective of a micro-batch, from these and its part of the credit.
4. ``update``: all of it in turn; gradients are summed, clipped and a step is taken, or skipped.
5. ``metrics``: what is logged, over all ranks.
"""
