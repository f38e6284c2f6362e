"""The Java process that runs ScienceWorld's simulator. All environments of a Python process share one.

The simulator keeps two things in variables of the whole process: its random generator and a counter for the ids of
objects. :class:`Globals` reads and sets them, so that several episodes can take turns without disturbing each other.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from gagpo.base.child import END_SECONDS, Shared
from gagpo.base.errors import GagpoError, MissingPackage

START_SECONDS = 120.0
CALL_SECONDS = 180.0  # of one call; the gold path of a genetics task takes 15 s on an idle machine
_JAVA_OPTIONS = (
    "-XX:+UseSerialGC",  # one thread collects, so that workers do not compete
    "-XX:CICompilerCount=2",
    "-Xss16m",
    # The order of some texts follows the identity hashes of objects: equal ones make it the order of insertion.
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-Djava.awt.headless=true",
)
_MULTIPLIER = 0x5DEECE66D  # java.util.Random.setSeed(s) stores s ^ _MULTIPLIER

Result = TypeVar("Result")


class SimulatorFailed(GagpoError, RuntimeError):
    """The Java process does not start, ended, or did not answer in time."""


class ActionFailed(GagpoError, RuntimeError):
    """The simulator raised an error."""


class Globals(NamedTuple):
    """What the simulator keeps in variables of its process.

    random: the 48 bits of the state of its random generator.
    ids: how many ids it has given to objects.
    """

    random: int
    ids: int


def _quiet(record: logging.LogRecord) -> bool:
    """Drop py4j's tracebacks of a lost process, which the root logger gets; :class:`SimulatorFailed` reports it."""
    return record.module != "java_gateway"


class Simulator:
    """A Java process, started when it is first used, and again after it was lost. Usable again after ``close()``.

    It ends with the Python process, even if that is killed: the system then closes the pipe that it reads from.

    lock: hold it during calls that belong together.
    generation: the number of times that it was started; objects of an earlier one are lost.
    active: whose globals the process has.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Start without a process: at first, and in a fork, where a thread that does not exist may hold the lock."""
        self.lock = threading.RLock()
        self.active: object | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._gateway: Any = None
        self._random: Any = None  # an object of Java, as are the following attributes
        self._ids: Any = None
        self._set_ids: Any = None
        self._content: Any = None
        self._stream: Any = None
        self._strings: Any = None
        self._interface: Any = None

    @property
    def process(self) -> int | None:
        """The id of the Java process."""
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        """Start the Java process unless it runs.

        Raises:
            MissingPackage: Java or the package scienceworld is not installed.
            SimulatorFailed: it does not start.
        """
        with self.lock:
            if self._process is not None and self._process.poll() is None:
                return
            self._end()
            command, folder = simulator_command()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # at its end Java exits
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                start_new_session=True,  # Ctrl-C reaches only its owner
            )
            try:
                self._connect(self._process)
            except SimulatorFailed:
                self._end()
                raise
            except Exception as error:  # py4j raises errors of many kinds
                self._end()
                raise SimulatorFailed(f"ScienceWorld does not start: {error}") from None
            self.generation += 1

    def _connect(self, process: subprocess.Popen[bytes]) -> None:
        from py4j.java_gateway import GatewayParameters, JavaGateway

        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        logging.getLogger().addFilter(_quiet)  # adds it once
        port, token = _first_lines(process, 2)
        parameters = GatewayParameters(
            port=int(port), auth_token=token, auto_field=True, auto_convert=True, read_timeout=CALL_SECONDS
        )
        self._gateway = JavaGateway(gateway_parameters=parameters)
        java = self._gateway.jvm
        null_stream = java.java.io.PrintStream(java.java.io.OutputStream.nullOutputStream())
        # Only the first lines of its output are read, and a full pipe would block Java.
        java.java.lang.System.setOut(null_stream)
        # Looked up once: each name of a package costs a call.
        self._random = getattr(getattr(java.scala.util, "Random$"), "MODULE$").self()
        self._ids = java.util.UniqueIdentifier
        self._set_ids = getattr(self._ids, "count_$eq")
        self._content = java.java.io.ByteArrayOutputStream()
        self._stream = java.java.io.ObjectOutputStream(self._content)
        self._strings = java.java.lang.String
        self._interface = java.scienceworld.runtime.pythonapi.PythonInterface

    def new_interface(self) -> Any:
        """A new ``PythonInterface`` of the simulator: one episode at a time."""
        return self.call(self._interface)

    def call(self, function: Callable[[], Result]) -> Result:
        """The result of a function that uses Java objects.

        Raises:
            ActionFailed: the simulator raised an error.
            SimulatorFailed: the process ended or did not answer; it was killed.
        """
        from py4j.protocol import Py4JError, Py4JJavaError

        try:
            return function()
        except Py4JJavaError as error:
            raise ActionFailed(f"the simulator failed: {error.java_exception}") from None
        except (Py4JError, OSError) as error:
            self._end()
            raise SimulatorFailed(f"the ScienceWorld process ended or did not answer: {error}") from None
        except BaseException:  # after an interrupt, a late answer must not answer the next call
            self._end()
            raise

    def read_globals(self) -> Globals:
        """The present state of the random generator and of the counter."""
        self._content.reset()
        self._stream.reset()
        self._stream.writeObject(self._random)
        self._stream.flush()
        # The last field of a serialised java.util.Random is its state in 8 bytes; an end mark of one byte follows.
        state = int.from_bytes(bytes(self._content.toByteArray())[-9:-1], "big")
        return Globals(state, int(self._ids.count()))

    def set_globals(self, values: Globals) -> None:
        self._random.setSeed(values.random ^ _MULTIPLIER)
        self._set_ids(values.ids)

    def texts(self, java_list: Any) -> list[str]:
        """A list of texts without line breaks, in one call: an iteration would take one for each."""
        text = str(self._strings.join("\n", java_list))
        return text.split("\n") if text else []

    def close(self) -> None:
        """End the Java process; safe to call twice."""
        with self.lock:
            self._end()

    def _end(self) -> None:
        process = self._process
        gateway = self._gateway
        self._process = self._gateway = self.active = None
        if process is None:
            return
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_SECONDS)
        if gateway is not None:
            with suppress(Exception):  # closes the connections to a process that has ended
                gateway.close()


def simulator_command() -> tuple[list[str], Path]:
    """The command that starts the simulator, and the folder that it needs as its working directory.

    Raises:
        MissingPackage: Java or the package scienceworld is not installed.
    """
    package = importlib.util.find_spec("scienceworld")
    if package is None or package.origin is None or importlib.util.find_spec("py4j") is None:
        raise MissingPackage(
            "ScienceWorld needs the package scienceworld", advice="pip install -c constraints.txt -e '.[scienceworld]'"
        )
    from py4j.java_gateway import find_jar_path

    folder = Path(package.origin).parent
    jars = [find_jar_path(), str(folder / "scienceworld.jar")]
    for jar in jars:
        if not Path(jar or "missing").is_file():
            raise MissingPackage(
                f"ScienceWorld: the file {jar or 'py4j.jar'} is missing", advice="reinstall scienceworld and py4j"
            )
    server = ["py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0"]
    return [java_path(), *_JAVA_OPTIONS, "-classpath", os.pathsep.join(jars), *server], folder


def java_path() -> str:
    """The Java program: of ``$JAVA_HOME``, or on the path.

    Raises:
        MissingPackage: there is none.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if program is None:
        where = f"in $JAVA_HOME ({home})" if home else "on the path"
        raise MissingPackage(
            f"ScienceWorld needs Java, and there is no program java {where}",
            advice="install a Java runtime, such as Debian's default-jre-headless",
        )
    return program


def _first_lines(process: subprocess.Popen[bytes], count: int) -> list[str]:
    """The first lines that ``process`` prints.

    Raises:
        SimulatorFailed: it ends, or takes more than ``START_SECONDS``.
    """
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    content = b""
    deadline = time.monotonic() + START_SECONDS
    while content.count(b"\n") < count:
        readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not readable:
            raise SimulatorFailed(f"ScienceWorld does not start: Java printed no port within {START_SECONDS:g} s")
        chunk = os.read(descriptor, 4096)
        if not chunk:
            raise SimulatorFailed(
                "ScienceWorld does not start: Java ended", advice="does `java -version` work, and is it 8 or newer?"
            )
        content += chunk
    return content.decode("utf-8", "replace").splitlines()[:count]


SIMULATOR = Shared(Simulator())
"""The simulator that all environments of this process share."""
