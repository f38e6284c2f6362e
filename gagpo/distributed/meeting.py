"""How ranks find each other: the store where they meet, and the network interface that they use."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
import sys
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from gagpo.distributed.background import Background, Overdue
from gagpo.distributed.environment import INTERFACE
from gagpo.distributed.errors import RankLost

MEETING_SECONDS = 600.0
_SIOCGIFADDR = 0x8915  # ioctl(2): the address of an interface


def meet(seconds: float) -> tuple[Store, Store, int, int]:
    """Wait for the store at ``MASTER_ADDR:MASTER_PORT``; return two connections to it, the rank and the world size.

    Ranks that torchrun restarts after a failure meet at the same store, under a prefix of their own. Raises
    :class:`RankLost`.
    """
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if os.environ["MASTER_PORT"].strip("0") == "":
        raise RankLost("ranks cannot meet at MASTER_PORT=0: run torchrun --standalone, or name a free port")
    found: list[tuple[Store, Store, int, int]] = []
    attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def look() -> None:
        store, rank, world_size = next(iter(dist.rendezvous("env://", timeout=timedelta(seconds=seconds))))  # type: ignore[attr-defined]
        found.append((PrefixStore(attempt, store), PrefixStore(attempt, store.clone()), rank, world_size))

    meeting = Background("the meeting of the ranks", seconds + 5)  # torch itself waits forever for a stopped store
    try:
        meeting.start(look)
        meeting.wait()
    except Overdue:
        raise not_found(f"the store at {place} does not answer") from None
    except (RuntimeError, ValueError, dist.DistError) as error:
        raise not_found(error) from None
    return found[0]


def not_found(why: object) -> RankLost:
    """The error of ranks that could not open their channels, in one line."""
    return RankLost(f"the {os.environ['WORLD_SIZE']} ranks did not find each other: {' '.join(str(why).split())[:200]}")


def choose_interface(store: Store, rank: int, world_size: int) -> None:
    """Have gloo use the interface on the route to ``MASTER_ADDR``, unless the user has named one.

    By default gloo uses the address that the machine's own name resolves to, which may be loopback. If ``MASTER_ADDR``
    is loopback too, the route to a rank on another machine decides. The choice is logged once per machine.
    """
    address = _own_address(os.environ["MASTER_ADDR"])
    store.set(f"address {rank}", address)
    if INTERFACE in os.environ:
        return
    if _is_loopback(address):
        others = (store.get(f"address {other}").decode() for other in range(world_size) if other != rank)
        address = next((_own_address(other) for other in others if other and not _is_loopback(other)), address)
    name = _interface_with(address)
    if name is None:
        return
    os.environ[INTERFACE] = name
    if os.environ["LOCAL_RANK"] == "0" and not _is_loopback(address):
        print(f"gagpo: rank {rank} talks over {name} ({address}); set {INTERFACE} for another", file=sys.stderr)


def _own_address(other: str) -> str:
    """The address from which this machine would send to ``other``; empty if it cannot."""
    try:
        for family, kind, _, _, place in socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as route:
                route.connect(place)  # a datagram socket: nothing is sent
                return str(route.getsockname()[0])
    except OSError:
        pass
    return ""


def _is_loopback(address: str) -> bool:
    return not address or ipaddress.ip_address(address).is_loopback


def _interface_with(address: str) -> str | None:
    """The name of the interface that has the address; None if unknown."""
    try:
        if ":" in address:
            digits = ipaddress.IPv6Address(address).packed.hex()
            lines = Path("/proc/net/if_inet6").read_text().splitlines()
            return next((line.split()[-1] for line in lines if line.startswith(digits)), None)
        wanted = socket.inet_aton(address)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            for _, name in socket.if_nameindex():
                if _address_of(any_socket, name) == wanted:
                    return name
    except (OSError, ValueError):
        pass
    return None


def _address_of(any_socket: socket.socket, name: str) -> bytes:
    """The IPv4 address of an interface, as four bytes; empty if it has none."""
    try:
        return fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()))[20:24]
    except OSError:
        return b""
