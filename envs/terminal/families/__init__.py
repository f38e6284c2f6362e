"""Families of generated tasks, one file for each subject."""
