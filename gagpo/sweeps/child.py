"""The process of one run: ``python -m gagpo.sweeps.child PARENT WORDS...`` is ``gagpo WORDS...``, and ends with PARENT.

The system kills it when the sweep's process is gone, even by SIGKILL, so that no run goes on unseen; the same command
resumes it. It must be set in this process, after its program has been loaded: a function that Popen calls between fork
and exec would not be safe in a process with threads.
"""

from __future__ import annotations

import runpy
import sys

from gagpo.base.guard import die_with_parent


def main() -> None:
    parent, *command = sys.argv[1:]
    die_with_parent(int(parent))
    sys.argv = ["gagpo", *command]
    runpy.run_module("gagpo", run_name="__main__")


if __name__ == "__main__":
    main()
