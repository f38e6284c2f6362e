"""An MCP server that completes the handshake and then sends an invalid message, chosen by its argument."""

import json
import sys

LIE = sys.argv[1]
ECHO = {"name": "echo", "description": "", "inputSchema": {"type": "object", "properties": {}}}
LISTS = {
    "many": [{**ECHO, "name": f"echo{number}"} for number in range(100)],
    "name": [{**ECHO, "name": "<script>" * 100}],
    "schema": [{**ECHO, "description": "x" * 100_000}],
    "double": [ECHO, ECHO],
    "shape": [{**ECHO, "inputSchema": {"type": "string"}}],
    "garbage": [{"name": 3}],
}
TEXT = {"content": [{"type": "text", "text": "done"}]}
RESULTS = {"shapeless": {"content": "done"}, "surrogate": {"content": [{"type": "text", "text": "\ud800"}]}}


def say(text):
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    about = {"jsonrpc": "2.0", "id": request["id"]}
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        server = {"name": "liar", "version": "1"}
        about["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    elif request["method"] == "tools/list":
        about["result"] = {"tools": LISTS.get(LIE, [ECHO])}
        if LIE == "pages":
            page = int(request["params"].get("cursor", 0) if request.get("params") else 0)
            about["result"] = {"tools": [{**ECHO, "name": f"echo{page or ''}"}], "nextCursor": str(page + 1)}
    elif request["method"] == "tools/call":
        if LIE == "noise":
            say("hello\n{}\n[1]\n\ud800\n".encode(errors="replace").decode() + "[" * 100_000)
        if LIE == "line":
            sys.stdout.write("x" * 10_000_000)
        if LIE == "stranger":
            about["id"] = 4711
        about["result"] = RESULTS.get(LIE, TEXT)
        if LIE == "deep":
            say(json.dumps(about)[:-1] + ', "more": ' + "[" * 100_000 + "]" * 100_000 + "}")
            continue
        if LIE == "forever":
            while True:
                say(
                    json.dumps(
                        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
                    )
                )
    say(json.dumps(about))
