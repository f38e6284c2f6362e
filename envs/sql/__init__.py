"""``gagpo/SQL-v0``: questions to databases, answered in SQL and judged by what the query returns."""
