"""A server's part of a process group: joins as ``init_custom_process_group`` does, and receives what is broadcast."""

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.distributed_c10d import Backend, PrefixStore, _new_process_group_helper, rendezvous


def main(told):
    timeout = timedelta(seconds=60)
    where = f"tcp://{told['master_address']}:{told['master_port']}"
    store, rank, size = next(rendezvous(where, told["rank_offset"], told["world_size"], timeout=timeout))
    store = PrefixStore(told["group_name"], store)
    group, _ = _new_process_group_helper(
        size, rank, [], Backend(told["backend"]), store, group_name=told["group_name"], timeout=timeout
    )
    dist.distributed_c10d._world.pg_group_ranks[group] = {place: place for place in range(size)}
    print("joined", flush=True)
    for line in sys.stdin:
        names, dtypes, shapes, path = json.loads(line)
        held = {}
        for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
            held[name] = torch.empty(shape, dtype=getattr(torch, dtype))
            dist.broadcast(held[name], src=0, group=group)
        save_file(held, path)
        print("received", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
