"""From rows of tokens and their credit to optimiser steps.

In the order of an update:

1. ``batch``: the turns of episodes become rows, rows mini-batches; ``sharded_batches`` gives each rank its part of
   them, and ``packing`` lays that out as micro-batches without padding, what rows begin with alike only once.
2. ``scoring``: log-probabilities that ratios start from, where those of the engine will not do.
3. ``forward``: what policy (``logprobs``), ``critic`` and reference find of each response token.
4. ``loss``: the objective of a micro-batch, from what was found and its part of the credit.
5. ``update``: all of it in turn, gradients added up, clipped and a step taken, or left out (``skipped_steps``).
6. ``metrics``: what is left to log, of all ranks.

``optimizer`` says what a step is, ``precision`` what is computed in.
"""
