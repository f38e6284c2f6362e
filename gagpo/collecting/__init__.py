"""Collecting the episodes of an iteration, between updates or during them."""
