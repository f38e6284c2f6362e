"""One trainer rank in a Ray actor, started as torchrun starts a rank."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gagpo.agents.engines.remote.transfer import free_port
from gagpo.base.errors import GagpoError

DONE, INVALID, LOST = "done", "invalid", "lost"


class Rank:
    """Runs in an actor of its own process, whose main thread trains."""

    def address(self) -> tuple[str, int]:
        """This node's address for the others, and a free port on it."""
        import ray

        return str(ray.util.get_node_ip_address()), free_port("")

    def process(self) -> tuple[int, str]:
        """The id of this process, and Ray's id of its node."""
        import ray

        return os.getpid(), str(ray.get_runtime_context().get_node_id())

    def train(self, folder: str, settings: str, variables: Mapping[str, str]) -> tuple[str, str]:
        """Start or resume the run in ``folder``; return the outcome and a message.

        :data:`INVALID` is an error that the user has to fix, :data:`LOST` one that a restart may cure.

        settings: of a new run, as YAML.
        """
        from gagpo.base.core_schema import parse_yaml
        from gagpo.distributed.errors import RankFailed, RankLost
        from gagpo.distributed.ranks import joined
        from gagpo.runs.run_folder import RunFolder
        from gagpo.settings import parse
        from gagpo.training import trainer

        os.environ.update(variables)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        path = Path(folder)
        try:
            if (path / "config.yaml").exists():
                run = RunFolder.open(path)
            else:
                values = cast("dict[str, object]", parse_yaml(settings))
                run = RunFolder.new(path, parse(values, "the settings of the run"))
            with joined(deadline=run.settings.ranks.deadline) as ranks:
                trainer.train(run, lambda event: print(event, flush=True), quiet=True, ranks=ranks)
        except (KeyboardInterrupt, SystemExit):  # a checkpoint has been written
            return LOST, f"rank {variables['RANK']} was interrupted"
        except (RankLost, RankFailed) as error:
            return LOST, str(error)
        except GagpoError as error:
            return INVALID, str(error)
        return DONE, ""


def send_signal(process: int, number: int) -> None:
    """``os.kill``, as a function that Ray can run on another node."""
    os.kill(process, number)
