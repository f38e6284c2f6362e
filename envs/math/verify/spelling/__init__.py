"""Spellings of answers: characters, words, units, brackets."""
