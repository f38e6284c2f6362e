"""Tool calls: how model families write them, and how a model is told of an environment's tools."""
