"""What may be said of the containers that worlds run in, and what the engine is told of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from gagpo.base.errors import InvalidArgument
from gagpo.envs.remote.protocol import Json

_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LOGS = {"Type": "json-file", "Config": {"max-size": "8m"}}  # a world that writes without end fills no disk


class ContainerSettings(BaseModel):
    """The containers of one image, in ``environment.kwargs`` beside ``train`` and ``test``.

    A container gets no privilege, no device and no capability. It sees no file of this machine but ``mounts``, and its
    port is open on this machine's loopback alone.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    containers: int = Field(1, ge=1, le=256, description="how many of them; episodes are spread over all")
    port: int = Field(8000, ge=1, le=65535, description="where the server inside listens")
    memory_mb: int = Field(4096, ge=16, description="megabytes of memory of each; none is swapped out")
    cpus: float | None = Field(None, gt=0, allow_inf_nan=False, description="processors of each; all by default")
    processes: int = Field(1024, ge=1, description="processes and threads of each, at most")
    network: str = Field("", description="of the engine, by its name; one that is internal leads nowhere else")
    variables: dict[str, str] = Field({}, description="environment variables inside")
    mounts: dict[str, str] = Field({}, description="folders here by their paths inside, which can only be read there")
    read_only: bool = Field(False, description="its own files can only be read, too; but for /tmp")
    start_deadline: float = Field(120.0, gt=0, allow_inf_nan=False, description="seconds until its server answers")
    health_deadline: float = Field(
        120.0, gt=0, allow_inf_nan=False, description="seconds without an answer until another takes its place"
    )
    restarts: int = Field(10, ge=0, description="containers that may be replaced in any hour")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """The settings of plain ``values``; InvalidArgument names the key that is wrong."""
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"]))
            known = f"; known: {', '.join(cls.model_fields)}" if first["type"] == "extra_forbidden" else ""
            raise InvalidArgument(f"environment.kwargs: {where!r:.80}: {first['msg']}{known}") from None

    @field_validator("network")
    @classmethod
    def _own_network(cls, name: str) -> str:
        if name in ("host", "none") or (name and not _NETWORK.fullmatch(name)):
            raise ValueError("a network of the engine by its name; host, none and another container's are not allowed")
        return name

    @field_validator("variables")
    @classmethod
    def _names(cls, variables: dict[str, str]) -> dict[str, str]:
        for name, value in variables.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise ValueError(f"{name!a:.80} cannot be an environment variable")
        return variables

    @field_validator("mounts")
    @classmethod
    def _paths(cls, mounts: dict[str, str]) -> dict[str, str]:
        for inside, here in mounts.items():
            if not inside.startswith("/") or inside.rstrip("/") == "":
                raise ValueError(f"{inside!a:.80} is no absolute path inside")
            if not Path(here).expanduser().exists():
                raise ValueError(f"{here!a:.200} does not exist here")
        return mounts

    def creation(self, image: str, labels: Mapping[str, str]) -> Json:
        """The body of the engine's ``/containers/create``. image: by name or id."""
        port = f"{self.port}/tcp"
        host: Json = {
            "PortBindings": {port: [{"HostIp": "127.0.0.1", "HostPort": ""}]},  # the engine chooses a free one
            "Privileged": False,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "Memory": self.memory_mb << 20,
            "MemorySwap": self.memory_mb << 20,
            "PidsLimit": self.processes,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": _LOGS,
            "ReadonlyRootfs": self.read_only,
        }
        if self.cpus is not None:
            host["NanoCpus"] = int(self.cpus * 1e9)
        if self.network:
            host["NetworkMode"] = self.network
        if self.read_only:
            host["Tmpfs"] = {"/tmp": ""}
        if self.mounts:
            host["Mounts"] = [
                {"Type": "bind", "Source": str(Path(here).expanduser().resolve()), "Target": inside, "ReadOnly": True}
                for inside, here in self.mounts.items()
            ]
        return {
            "Image": image,
            "Labels": dict(labels),
            "Env": [f"{name}={value}" for name, value in self.variables.items()],
            "ExposedPorts": {port: {}},
            "HostConfig": host,
        }


def image_of(env_id: str) -> str:
    """The image that ``docker://IMAGE`` names; InvalidArgument where that can be none."""
    image = env_id.partition("://")[2]
    if not _IMAGE.fullmatch(image):
        raise InvalidArgument(f"a world in a container is named by docker://IMAGE[:TAG], got {env_id!a:.100}")
    return image
