"""Steps per second of an OpenEnv server with many sessions, beside the same walks in this process.

Both by the clock and by processor time, which says more on a machine that has other work too. The server's is that of
all its processes; the clients' is what it takes to ask.

python -m benchmarks.serve --env gagpo/ALFWorld-v0 --sessions 50 --steps 20000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from typing import Any

import gymnasium
import psutil

from gagpo.envs.lookup import find_spec

CODE = """
import contextlib, json, sys
from gagpo.interop.openenv import serve

with contextlib.suppress(KeyboardInterrupt):
    serve(sys.argv[1], **json.loads(sys.argv[2]))
"""


def start(env_id: str, options: str = '{"port": 0, "admissible": true}') -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, and its address."""
    server = subprocess.Popen([sys.executable, "-c", CODE, env_id, options], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    line = server.stdout.readline()
    if "http://" not in line:
        server.kill()
        raise RuntimeError(f"the server of {env_id} did not start")
    return server, "http://" + line.strip().partition("http://")[2]


def stop(server: subprocess.Popen[str]) -> int:
    server.send_signal(signal.SIGINT)
    try:
        return server.wait(30)
    except subprocess.TimeoutExpired:
        server.kill()
        raise


async def walk(url: str, number: int, steps: int) -> tuple[int, int]:
    """Random play of ``steps`` steps in one session; how many were made, and how many episodes ended."""
    from openenv import GenericEnvClient

    rng = random.Random(number)
    made = ended = 0
    async with GenericEnvClient(base_url=url) as client:
        result = await client.reset(seed=number)
        while made < steps:
            actions = result.observation.get("admissible_actions") or ["look"]
            result = await client.step({"action": rng.choice(actions)})
            made += 1
            if result.done:
                ended += 1
                result = await client.reset(seed=number + ended)
    return made, ended


async def crowd(url: str, sessions: int, steps: int) -> dict[str, Any]:
    """``sessions`` clients at once, ``steps`` steps together."""
    begun = time.perf_counter()
    walks = await asyncio.gather(*(walk(url, number, steps // sessions) for number in range(sessions)))
    seconds = time.perf_counter() - begun
    made = sum(made for made, _ in walks)
    return {"sessions": sessions, "steps": made, "episodes": sum(ended for _, ended in walks), "rate": made / seconds}


def processor_seconds(pid: int) -> float:
    """Processor time so far of a process and all its descendants that live."""
    server = psutil.Process(pid)
    times = [process.cpu_times() for process in (server, *server.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def here(env_id: str, steps: int) -> tuple[float, float]:
    """Steps per second of the same random play without a server: by the clock, and by processor time."""
    env = gymnasium.make(find_spec(env_id), disable_env_checker=True)
    rng = random.Random(0)
    _, info = env.reset(seed=0)
    begun, used = time.perf_counter(), time.process_time()
    for number in range(steps):
        _, _, terminated, truncated, info = env.step(rng.choice(info["admissible_actions"] or ["look"]))
        if terminated or truncated:
            _, info = env.reset(seed=number)
    return steps / (time.perf_counter() - begun), steps / (time.process_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="gagpo/ALFWorld-v0")
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--steps", type=int, default=20_000)
    given = parser.parse_args()
    own, own_processor = here(given.env, min(given.steps, 5000))
    server, url = start(given.env)
    try:
        serving, asking = processor_seconds(server.pid), time.process_time()
        served = asyncio.run(crowd(url, given.sessions, given.steps))
        serving, asking = processor_seconds(server.pid) - serving, time.process_time() - asking
    finally:
        stop(server)
    print(f"{given.env} on {os.cpu_count()} cores, the clients on the same ones; resets included")
    print(f"in-process      {own:10,.0f} steps/s, {own_processor:10,.0f} per second of processor time")
    print(
        f"OpenEnv server  {served['rate']:10,.0f} steps/s, {given.steps / serving:10,.0f} per second of the server's "
        f"processor time, {given.steps / asking:,.0f} of the clients'"
    )
    print(f"{served['sessions']} sessions, {served['steps']:,} steps, {served['episodes']:,} episodes, no error")


if __name__ == "__main__":
    main()
