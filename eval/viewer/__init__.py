"""Static pages that show episodes turn by turn."""
