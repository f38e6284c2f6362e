"""The shop as a web site, and the environment that plays it in a real browser."""
