"""The package as others see it: one name, a quick import, no circles, rooms that are not crowded."""

import ast
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

import gagpo

ROOT = Path(__file__).parents[1]


def python(code, *flags, cwd=None):
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=120, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done


def test_the_face_is_complete_and_imports_nothing_heavy():
    heavy = "('torch', 'transformers', 'gymnasium', 'numpy', 'pydantic')"
    code = f"import gagpo, sys; assert not [m for m in {heavy} if m in sys.modules]; print(gagpo.__version__)"
    assert python(code).stdout.strip() == gagpo.__version__
    assert all(getattr(gagpo, name) is not None for name in gagpo.__all__)
    assert set(gagpo.__all__) <= set(dir(gagpo))
    code = "import gagpo.settings, sys; assert not [m for m in ('torch', 'transformers') if m in sys.modules]"
    python(code)


def test_an_environment_is_made_without_an_import_of_ours():
    code = "import gymnasium; print(type(gymnasium.make('gagpo.envs:gagpo/Math-v0').unwrapped).__module__)"
    assert python(code).stdout.strip() == "gagpo.envs.math.env"


def modules():
    for path in sorted(ROOT.glob("*/**/*.py")):
        top = path.relative_to(ROOT).parts[0]
        if top in ("envs", "agents", "eval", "gagpo") and "__pycache__" not in path.parts:
            parts = path.relative_to(ROOT).with_suffix("").parts
            if top == "gagpo" and parts[1:2] and parts[1] in ("envs", "agents", "eval", "configs"):
                continue  # the links
            yield ".".join(("gagpo", *parts) if top != "gagpo" else parts).removesuffix(".__init__"), path


def imports(path):
    """Modules that are imported when ``path`` is: at its top level, outside of functions and TYPE_CHECKING."""
    pending = list(ast.parse(path.read_text(encoding="utf-8")).body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.If | ast.Try | ast.With):
            pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_only_go_down_and_never_in_a_circle():
    floors = {"envs": 0, "agents": 1, "eval": 2}
    known = dict(modules())
    graph = {}
    for name, path in known.items():
        found = {one for one in imports(path) if one in known and one != name}
        graph[name] = {one for one in found if not name.startswith(one + ".")}
        mine = floors.get(name.split(".")[1], 3) if "." in name else 3
        for one in found - {"gagpo"}:
            assert floors.get(one.split(".")[1], 3) <= mine, f"{name} imports {one}, which is above it"
    state = {}

    def visit(name, trail):
        assert state.get(name) != "under way", " -> ".join([*trail, name])
        if name not in state:
            state[name] = "under way"
            for other in sorted(graph[name]):
                visit(other, [*trail, name])
            state[name] = "done"

    for name in graph:
        visit(name, [])
    assert len(graph) > 100


def test_no_room_is_crowded_and_envs_never_sees_torch():
    for folder in {path.parent for _, path in modules()}:
        own = [path for path in folder.iterdir() if path.is_file() and path.suffix == ".py"]
        assert len(own) <= 14, f"{folder} holds {len(own)} files"
    for name, path in modules():
        if name.startswith("gagpo.envs"):
            assert not any(one.split(".")[0] == "torch" for one in imports(path)), name


def test_every_pin_is_a_requirement_that_pip_can_read():
    for path in (ROOT / "constraints.txt", *(ROOT / "constraints").glob("*.txt")):
        text = path.read_bytes()
        assert b"\r" not in text, path
        for line in text.decode().splitlines():
            if pin := line.partition("#")[0].strip():
                assert str(Requirement(pin).specifier).startswith("=="), f"{path.name}: {line}"
