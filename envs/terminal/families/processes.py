"""Processes and ports on the loopback of the sandbox."""

from __future__ import annotations

import random

from gagpo.envs.terminal.exercise import Exercise, Final
from gagpo.envs.terminal.families.family import family
from gagpo.envs.terminal.families.words import SplitWords
from gagpo.envs.terminal.tree import Node, file

_WORKER = "#!/bin/bash\necho $$ > $1.pid\nread -u 3 3<> .wait\n"
"""Waits at a pipe that nothing is written to. It starts no program, so its process id is the same in every episode."""
_SERVER = """import socket
server = socket.create_server(("127.0.0.1", {port}))
open("{ready}", "w").close()
while True:
    connection, _ = server.accept()
    connection.sendall(b"{secret}\\n")
    connection.close()
"""


@family("stop-process", 2)
def stop_process(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    script = words.stem()
    workers = words.stems(1 + level)
    target = rng.choice(workers)
    tree = {f"{script}.sh": file(_WORKER, 0o755), ".wait": Node("p")}
    start = "\n".join(f"./{script}.sh {worker} > /dev/null 2>&1 & disown" for worker in workers)
    wait = " && ".join(f"test -s {worker}.pid" for worker in workers)
    stop = {1: f"kill $(cat {target}.pid)", 2: f"kill -9 $(cat {target}.pid)"}[level]
    lines = {worker: f"/bin/bash ./{script}.sh {worker}" for worker in workers}

    def check(final: Final) -> bool:
        return {worker for worker in workers if lines[worker] in final.processes} == set(workers) - {target}

    return Exercise(
        f"Several copies of {script}.sh run in the background, each with its name as the argument and its "
        "process id in "
        f"NAME.pid. Stop the one named {target}. The others go on.",
        tree,
        check,
        (stop, "sleep 0.1"),
        (f"pkill -9 -f '{script}.sh {target}$'; sleep 0.1",),
        (f"pkill -f {script}.sh; sleep 0.1; rm {target}.pid",),
        services=f"{start}\nuntil {wait}; do sleep 0.01; done",
    )


@family("ask-port", 2)
def ask_port(rng: random.Random, level: int, words: SplitWords) -> Exercise:
    name, target, ready = words.stems(3)
    port = rng.randint(3000, 9000)
    secret = f"{words.stem()}-{rng.randint(100, 999)}"
    tree = {f"{name}.port": file(f"{port}\n")}
    where = f"at port {port}" if level == 1 else f"at the port in {name}.port"
    number = str(port) if level == 1 else f"$(cat {name}.port)"
    code = _SERVER.format(port=port, secret=secret, ready=f"/tmp/{ready}")
    python = f"import socket; print(socket.create_connection(('127.0.0.1', {number})).makefile().readline().strip())"
    return Exercise(
        f"A server on 127.0.0.1 {where} sends one line to everyone who connects. Write this line into {target}.txt.",
        tree,
        lambda final: final.lines(f"{target}.txt") == [secret],
        (f"cat < /dev/tcp/127.0.0.1/{number} > {target}.txt",),
        (f'python3 -c "{python}" > {target}.txt',),
        (f"echo {number} > {target}.txt",),
        services=f"python3 -I -S -c '{code}' > /dev/null 2>&1 & disown\nuntil test -e /tmp/{ready}; do "
        "sleep 0.01; done",
    )
