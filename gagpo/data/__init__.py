"""Stages of experience, from episodes to rows of tokens; needs numpy alone."""
