"""``python -m gagpo``: the command line."""

from gagpo.cli.main import main

main()
