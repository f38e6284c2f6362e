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
    "no schema": [ECHO, {"name": "lookup"}],
}
TEXT = {"content": [{"type": "text", "text": "done"}]}
RESOURCE = {"uri": "file:///notes.txt", "mimeType": "text/plain"}
PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
RESULTS = {
    "shapeless": {"content": "done"},
    "surrogate": {"content": [{"type": "text", "text": "a\ud800b \U0001f642"}]},
    "latin-1": {"content": [{"type": "text", "text": "café"}]},
    "structured": {"content": [], "structuredContent": {"value": 42}},
    "structured only": {"structuredContent": {"value": 42}},
    "structured and null": {"content": None, "structuredContent": {"value": 42}},
    "structured beside an image": {"content": [PICTURE], "structuredContent": {"value": "é"}},
    "structured and blank": {"content": [{"type": "text", "text": " "}], "structuredContent": {"value": 42}},
    "structured and text": {"content": [{"type": "text", "text": "42"}], "structuredContent": {"value": 42}},
    "failed": {"content": [], "structuredContent": {"value": 42}, "isError": True},
    "resource": {"content": [{"type": "resource", "resource": {**RESOURCE, "text": "the notes"}}]},
    "blob": {"content": [{"type": "resource", "resource": {**RESOURCE, "blob": "aGk="}}]},
    "link": {"content": [{"type": "resource_link", "name": "notes", **RESOURCE}]},
    "schema of answers": {"content": [{"type": "text", "text": "not as declared"}], "structuredContent": {"n": "x"}},
    "no structure": {"content": [{"type": "text", "text": "not as declared"}]},
}
NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
for lie in ("schema of answers", "no structure"):
    LISTS[lie] = [{**ECHO, "outputSchema": NUMBER}]
ERRORS = {
    "rejected": {"code": -32602, "message": "x must not be bad"},
    "rejected with data": {"code": -32602, "message": "Invalid params", "data": {"x": "must not be bad"}},
    "same code as a lost connection": {"code": -32000, "message": "the till is closed"},
    "no words": {"code": -32603, "message": ""},
}
calls = 0
if LIE == "key":
    sys.exit("starting\nset MY_API_KEY")
if LIE == "key on standard output":
    print("set MY_API_KEY")
    sys.exit(1)


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
        calls += 1
        if LIE == "last words":
            sys.exit("out of \x1b[1mdisk\x1b[0m")
        if LIE in ERRORS and calls % 2:
            say(json.dumps({**about, "error": ERRORS[LIE]}))
            continue
        if LIE in ERRORS:
            RESULTS[LIE] = {"content": [{"type": "text", "text": f"call {calls}"}]}
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
        if LIE == "latin-1":
            sys.stdout.reconfigure(encoding="latin-1")
            say(json.dumps(about, ensure_ascii=False))
            continue
        if LIE == "forever":
            while True:
                say(
                    json.dumps(
                        {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}
                    )
                )
    say(json.dumps(about))
