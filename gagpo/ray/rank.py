"""One trainer rank in an actor: it learns who the others are as ranks under torchrun do, and runs the same training."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from gagpo.agents.engines.remote.transfer import free_port
from gagpo.base.errors import GagpoError

DONE, MEND, LOST = "done", "mend", "lost"


class Rank:
    """Runs in an actor of its own process, whose main thread trains."""

    def address(self) -> tuple[str, int]:
        """This node as the others reach it, and a free port on it."""
        return _own_address(), free_port("")

    def process(self) -> tuple[int, str]:
        """The id of this process, and of its node as Ray names it."""
        import ray

        return os.getpid(), str(ray.get_runtime_context().get_node_id())

    def train(self, folder: str, settings: str, variables: Mapping[str, str]) -> tuple[str, str]:
        """Start or resume the run in ``folder``. settings: of a new run, as YAML.

        Gives :data:`DONE`, or :data:`MEND` with what the user has to mend, or :data:`LOST` with what ended this rank
        that starting again may cure.
        """
        from gagpo.distributed.errors import RankFailed, RankLost
        from gagpo.distributed.ranks import joined
        from gagpo.ray.actors import RayPlace
        from gagpo.runs.run_folder import RunFolder
        from gagpo.settings import parse
        from gagpo.settings.core_schema import parse_yaml
        from gagpo.training import trainer

        os.environ.update(variables)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        path = Path(folder)
        try:
            if (path / "config.yaml").exists():
                run = RunFolder.open(path)
            else:
                run = RunFolder.new(
                    path, parse(cast("dict[str, object]", parse_yaml(settings)), "the settings of the run")
                )
            place = RayPlace(run.settings, path)
            with joined(deadline=run.settings.ranks.deadline) as ranks:
                trainer.train(run, lambda event: print(event, flush=True), quiet=True, ranks=ranks, placement=place)
        except (KeyboardInterrupt, SystemExit):  # a checkpoint has been written
            return LOST, f"rank {variables['RANK']} was interrupted"
        except (RankLost, RankFailed) as error:
            return LOST, str(error)
        except GagpoError as error:
            return MEND, str(error)
        return DONE, ""


def pass_on(process: int, number: int) -> None:
    """Send a signal to a process of the node that this runs on."""
    os.kill(process, number)


def _own_address() -> str:
    """This node's address as Ray knows it, which is one that other nodes reach."""
    try:
        import ray

        return str(ray.util.get_node_ip_address())
    except ImportError:
        return socket.gethostbyname(socket.gethostname())
