"""Web pages in a real browser: agents read a page as a list and act on its numbered elements."""
