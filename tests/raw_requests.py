"""Requests that no HTTP library would send, to a server under test."""

import socket
from urllib.parse import urlsplit


def exchanged(url, data, seconds=20.0, ended=True):
    """All that the server at ``url`` answers to the bytes ``data`` until it closes the connection. ended: say that no
    more bytes come, which some servers take for a client that has gone."""
    segments = urlsplit(url)
    answer = b""
    with socket.create_connection((segments.hostname, segments.port), timeout=seconds) as connection:
        try:
            connection.sendall(data)
            if ended:
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                answer += chunk
        except TimeoutError:
            raise
        except OSError:  # it has closed before it had read all
            pass
    return answer


def asked(url, method="GET", path="/", body=b"", **headers):
    """Status and whole answer of one request; underscores in a header's name are hyphens. host: as the url's unless
    it is given."""
    headers = {"host": urlsplit(url).netloc, "connection": "close", "content_length": len(body), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    answer = exchanged(url, "\r\n".join([*lines, "", ""]).encode() + body, ended=False)
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0, answer.lower()
