"""Functions that the child processes of the tests run."""

import os
import socket
import sys
import time


def serve(pipe, *arguments):
    """Answer ``(operation, value)``, with every way to misbehave."""
    pipe.send("ready")
    while True:
        operation, value = pipe.receive()
        if operation == "echo":
            pipe.send(value)
        elif operation == "arguments":
            pipe.send(list(arguments))
        elif operation == "sleep":
            time.sleep(value)
            pipe.send("slept")
        elif operation == "exit":
            os._exit(value)
        elif operation == "allocate":
            try:
                pipe.send(len(bytearray(value)))
            except MemoryError:
                pipe.send("no memory")
        elif operation == "modules":
            pipe.send(sorted(sys.modules))
        elif operation == "write":
            pipe.socket.sendall(value)
        elif operation == "start":  # a process that holds the connection and ignores hang-ups
            if os.fork() == 0:
                time.sleep(1000)
            pipe.send(os.getpid())


def mute(pipe):
    time.sleep(1000)


def broken(pipe):
    raise SystemExit(3)


def never_reading(pipe):
    pipe.send("ready")
    pipe.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    time.sleep(1000)
