"""MiniWoB++, the small web tasks of the Farama Foundation, and experts for those that consist of text."""
