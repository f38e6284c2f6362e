"""A rank that meets the others until a file appears. Arguments: the folder and the deadline."""

import sys
from pathlib import Path

from gagpo.distributed.ranks import joined

folder, deadline = Path(sys.argv[1]), float(sys.argv[2])
with joined(deadline) as ranks:
    print(f"{ranks.rank} met", flush=True)
    meetings = 0
    while not any(ranks.gathered((folder / "end").exists())):
        meetings += 1
        (folder / f"meetings {ranks.rank}").write_text(str(meetings))
print(f"{ranks.rank} ended well", flush=True)
