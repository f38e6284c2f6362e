"""A rank that meets the others until a file appears. Arguments: the folder, the deadline, who kills itself."""

import os
import signal
import sys
from pathlib import Path

from gagpo.distributed.ranks import joined

folder, deadline, killed = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
with joined(deadline) as ranks:
    print(f"{ranks.rank} met", flush=True)
    meetings = 0
    while not any(ranks.gathered((folder / "end").exists())):
        meetings += 1
        (folder / f"meetings {ranks.rank}").write_text(str(meetings))
        if f"{ranks.rank} in {os.environ.get('TORCHELASTIC_RESTART_COUNT')}" in killed and meetings == 3:
            os.kill(os.getpid(), signal.SIGKILL)
print(f"{ranks.rank} ended well", flush=True)
