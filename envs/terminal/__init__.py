"""``gagpo/Terminal-v0``: work in a shell, in a sandbox, judged by the files that it leaves."""
