"""Two ranks on two hosts: network namespaces with a link between them, which is cut once the ranks have met.

Run by ``unshare -rnm``. Arguments: the folder of the worker, and its deadline. Prints the status and the words of each
rank as JSON.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

WORKER = Path(__file__).with_name("meeting_worker.py")


def call(*words):
    subprocess.run(list(map(str, words)), check=True)


folder, deadline = Path(sys.argv[1]), sys.argv[2]
away = subprocess.Popen(["unshare", "-n", "sleep", "600"])
while os.readlink(f"/proc/{away.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
    time.sleep(0.01)
there = ("nsenter", f"--net=/proc/{away.pid}/ns/net")
call("ip", "link", "add", "near0", "type", "veth", "peer", "name", "far0", "netns", away.pid)
for number, enter, link in ((1, (), "near0"), (2, there, "far0")):
    call(*enter, "ip", "addr", "add", f"10.77.0.{number}/24", "dev", link)
    for name in ("lo", link):
        call(*enter, "ip", "link", "set", name, "up")

started = []
for rank, (enter, link) in enumerate([((), "near0"), (there, "far0")]):
    names = {"WORLD_SIZE": 2, "RANK": rank, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "OMP_NUM_THREADS": 1}
    place = {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": 29511, "GLOO_SOCKET_IFNAME": link}
    environment = {**os.environ, **{name: str(value) for name, value in {**names, **place}.items()}}
    command = [sys.executable, WORKER, folder, deadline]
    output = (folder / f"said {rank}").open("w")
    words = list(map(str, [*enter, *command]))
    started.append(subprocess.Popen(words, env=environment, stdout=output, stderr=subprocess.STDOUT))
try:
    met = [folder / "meetings 0", folder / "meetings 1"]
    while not all(path.exists() for path in met) and all(process.poll() is None for process in started):
        time.sleep(0.05)
    call("ip", "link", "set", "near0", "down")
    statuses = [process.wait(240) for process in started]
finally:
    for process in (*started, away):
        process.kill()
print(json.dumps([[status, (folder / f"said {rank}").read_text()] for rank, status in enumerate(statuses)]))
