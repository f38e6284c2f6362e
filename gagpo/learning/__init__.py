"""From the episodes of an iteration to optimiser steps.

1. ``learner`` computes the credit of the episodes, sets the learning rate, and bounds the update. ``policy`` loads what
   it trains.
2. ``batch`` divides rows into mini-batches; ``packing`` distributes them over ranks and lays them out as micro-batches.
3. ``update`` reads the micro-batches with the networks (``gagpo.model.networks``), accumulates and clips gradients, and
   takes or skips the step (``optimizer``, ``skipped_steps``); ``loss`` computes the loss of a micro-batch.
4. ``metrics`` gathers what is logged.
"""
