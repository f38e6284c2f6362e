"""A rank that trains one run after another: ``python worker.py FILE``, with torchrun's environment variables.

FILE: JSON, an object with AdamW's ``epsilon`` and ``runs``, a list of [config, folder, chunk]. A folder that is there
is continued. chunk: logits at a time, or null.
"""

import json
import sys
from pathlib import Path

from gagpo.distributed.ranks import joined
from gagpo.learning import optimizer
from gagpo.model import logprobs
from gagpo.runs.run_folder import RunFolder
from gagpo.settings import load
from gagpo.training.trainer import train


def main() -> None:
    with joined() as ranks:
        usual = logprobs.CHUNK
        jobs = json.loads(Path(sys.argv[1]).read_text())
        optimizer.EPSILON = jobs["epsilon"]
        for config, location, *chunk in jobs["runs"]:
            logprobs.CHUNK = (chunk and chunk[0]) or usual
            path = Path(location)
            there = ranks.of_first(lambda path=path: (path / "config.yaml").exists())
            settings = None if there else load(config)
            train(RunFolder(path, settings), quiet=True, ranks=ranks)


if __name__ == "__main__":
    main()
