"""What the children of the tests run."""

import os
import socket
import sys
import time


def serve(channel, *arguments):
    """Answer ``(operation, value)``, with every way to misbehave."""
    channel.send("ready")
    while True:
        operation, value = channel.receive()
        if operation == "echo":
            channel.send(value)
        elif operation == "arguments":
            channel.send(list(arguments))
        elif operation == "sleep":
            time.sleep(value)
            channel.send("slept")
        elif operation == "exit":
            os._exit(value)
        elif operation == "allocate":
            try:
                channel.send(len(bytearray(value)))
            except MemoryError:
                channel.send("no memory")
        elif operation == "modules":
            channel.send(sorted(sys.modules))
        elif operation == "write":
            channel.socket.sendall(value)
        elif operation == "start":  # a process that holds the connection and ignores hang-ups
            if os.fork() == 0:
                time.sleep(1000)
            channel.send(os.getpid())


def mute(channel):
    time.sleep(1000)


def broken(channel):
    raise SystemExit(3)


def never_reading(channel):
    channel.send("ready")
    channel.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    time.sleep(1000)
