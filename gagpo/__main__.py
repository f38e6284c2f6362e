"""``gagpo`` and ``python -m gagpo``: the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the commands and run one. Ctrl-C during the import is one line, too."""
    try:
        from gagpo.cli.main import main as run
    except KeyboardInterrupt:
        print("interrupted before the command began")
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
