"""Whether a machine computes right: cards, disk, ranks, an engine, an update, and a short run that learns."""
