"""An image of a world's server made of what is on this machine, so that a real engine can be tried without a network.

It holds this interpreter, its standard library, the C libraries that they need, websockets, and the counting world of
``session_server``; nothing of this project.
"""

import io
import re
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import httpx2
import websockets

from tests.envs.remote import session_server

IMAGE = "localhost/gagpo-test/counting:latest"
LEFT_OUT = re.compile(
    r"/(test|tests|idlelib|tkinter|turtledemo|ensurepip|lib2to3|site-packages|__pycache__|config-\d.*)$"
)


def rootfs() -> bytes:
    """A tar of the files, at the places that they have here."""
    library, interpreter = Path(sysconfig.get_path("stdlib")).resolve(), Path(sys.executable).resolve()
    modules = Path(websockets.__file__).parent
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        found = {interpreter, *(library / "lib-dynload").glob("*.so")}
        for name in sorted({needed for one in found for needed in _libraries(one)}):
            tar.add(Path(name).resolve(), name)
        tar.add(interpreter, "/python")
        tar.add(library, str(library), filter=lambda one: None if LEFT_OUT.search(f"/{one.name}") else one)
        tar.add(modules, "/app/websockets", filter=lambda one: None if "__pycache__" in one.name else one)
        tar.add(session_server.__file__, "/app/session_server.py")
        tar.addfile(_folder("/tmp", 0o1777))
    return buffer.getvalue()


def _folder(name, mode):
    folder = tarfile.TarInfo(name)
    folder.type, folder.mode = tarfile.DIRTYPE, mode
    return folder


def _libraries(file: Path) -> list[str]:
    said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, timeout=60).stdout
    return re.findall(r"(/\S+) \(0x", said)


def install(socket: str) -> None:
    """Have the engine at ``socket`` hold the image; nothing where it has it already."""
    home = str(Path(sysconfig.get_path("stdlib")).resolve().parents[1])
    changes = [
        *(f"ENV {name}={value}" for name, value in {"PYTHONHOME": home, "PYTHONPATH": "/app"}.items()),
        'CMD ["/python", "-m", "session_server", "0.0.0.0", "8000"]',
    ]
    name, _, tag = IMAGE.rpartition(":")
    with httpx2.Client(transport=httpx2.HTTPTransport(uds=socket), timeout=300, trust_env=False) as http:
        if http.get(f"http://engine/images/{IMAGE}/json").status_code == 200:
            return
        answer = http.post(
            "http://engine/images/create",
            params={"fromSrc": "-", "repo": name, "tag": tag, "changes": changes},
            content=rootfs(),
            headers={"content-type": "application/x-tar"},
        )
        assert answer.status_code == 200 and "error" not in answer.text.lower(), answer.text[-500:]
