"""Collecting the episodes of an iteration, between updates or while the model is updated."""
