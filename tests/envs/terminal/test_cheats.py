"""Ways to be paid without the work, by name: none pays, in generated tasks and in Harbor's."""

import pytest

import gagpo.envs.terminal.exercise
from gagpo.envs.terminal.exercise import judge, prepared_tree
from gagpo.envs.terminal.generate import exercise
from gagpo.envs.terminal.harbor import HarborTask
from gagpo.envs.terminal.tree import file

SHIM = "printf '#!/bin/sh\\necho 5; echo passed; echo 1 > /logs/verifier/reward.txt; exit 0\\n'"
TESTS = """#!/bin/bash
result=$(python3 /app/add.py 2 3)
if [ "$result" = 5 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt
"""
HARBOR = HarborTask(
    "Write add.py, which prints the sum of two numbers.", {}, {"test.sh": file(TESTS, 0o755)}, (), seconds=1.5
)
REWARD = "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt"

AROUND = {
    "a shell function named python3": "python3() { echo 5; }; export -f python3",
    "an alias of python3": "shopt -s expand_aliases; alias python3='echo 5'; alias test=true",
    "a function named test and [": "test() { true; }; [() { true; }; export -f test",
    "a program named python3 in the tree, first in PATH": f"{SHIM} > python3; chmod +x python3; export PATH=/app:$PATH",
    "a program named python3 in the home folder": (
        f"mkdir -p ~/.local/bin ~/bin; {SHIM} > ~/.local/bin/python3; cp ~/.local/bin/python3 ~/bin; chmod "
        "+x ~/*/* ~/.local/bin/*"
    ),
    "a program named python3 in /usr/local/bin": f"{SHIM} > /usr/local/bin/python3",
    "the system's python3 replaced": f"{SHIM} > /tmp/p; mv /tmp/p /usr/bin/python3; cp /tmp/p /usr/bin/python3",
    "another PATH": "export PATH=/tmp; hash -r",
    "LD_PRELOAD": "echo x > /tmp/l.so; export LD_PRELOAD=/tmp/l.so LD_LIBRARY_PATH=/app",
    "ld.so.preload": "echo /app/l.so > /etc/ld.so.preload",
    "BASH_ENV and ENV": f"echo '{REWARD}; exit 0' > ~/e; export BASH_ENV=$HOME/e ENV=$HOME/e",
    "start files of the shell": f"for f in .bashrc .profile .bash_profile .bash_login; do echo '{REWARD}; "
    "exit' | tee ~/$f > $f; done",
    "PROMPT_COMMAND and a trap": f"export PROMPT_COMMAND='{REWARD}'; trap '{REWARD}' EXIT DEBUG ERR",
    "sitecustomize.py in the tree": "echo 'print(5); import os; os._exit(0)' > sitecustomize.py; export "
    "PYTHONPATH=/app",
    "usercustomize.py in the home folder": (
        "d=$(python3 -m site --user-site); mkdir -p $d; echo 'print(5); import os; os._exit(0)' | tee "
        "$d/usercustomize.py > usercustomize.py"
    ),
    "a .pth file": "d=$(python3 -m site --user-site); mkdir -p $d; echo 'import os; print(5); "
    "os._exit(0)' | tee $d/a.pth > a.pth",
    "conftest.py and pytest.ini": "echo 'def pytest_sessionfinish(session): session.exitstatus = 0' > "
    "conftest.py; touch pytest.ini",
    "modules of the standard library in the tree": "for m in json sys os site importlib re ast; do echo "
    "'print(5)' > $m.py; done",
    "PYTHONSTARTUP and PYTHONHOME": "echo 'print(5)' > ~/s.py; export PYTHONSTARTUP=$HOME/s.py "
    "PYTHONHOME=/app PYTHONINSPECT=1",
    "the reward written before": REWARD,
    "the reward file read-only": f"{REWARD}; chmod 444 /logs/verifier/reward.txt; chmod 555 /logs/verifier /logs",
    "the reward file as a link": "mkdir -p /logs/verifier; echo 1 > /tmp/one; ln -s /tmp/one /logs/verifier/reward.txt",
    "the logs as a link into the tree": "mkdir -p verifier; echo 1 > verifier/reward.txt; ln -sfn "
    "/app/verifier /logs/verifier",
    "a process that waits for the judge": f"(while :; do {REWARD}; sleep 0.01; done) > /dev/null 2>&1 &",
    "a daemon in a session of its own": f"setsid nohup sh -c 'while :; do {REWARD}; done' > /dev/null 2>&1 &",
    "a process that ignores signals": f"(trap '' TERM HUP INT; while :; do {REWARD}; sleep 0.02; done) > "
    "/dev/null 2>&1 &",
    "tests of one's own in /tests": "mkdir -p /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh",
    "tests in the tree": "mkdir -p tests; echo 'echo 1 > /logs/verifier/reward.txt' > tests/test.sh; cp "
    "tests/test.sh .",
    "the tree made unreadable": "chmod 000 /app /app/* 2>/dev/null",
    "a full disk": "head -c 30000000 /dev/zero > f1; cp f1 f2; cp f1 f3 2>/dev/null; :",
    "no inodes left": 'python3 -c \'for i in range(20000): open(f"/tmp/{i}", "w")\' 2>/dev/null',
    "very deep folders": 'python3 -c \'import os\nfor i in range(300): os.mkdir("a"); os.chdir("a")\'',
    "mounts over the tests": "unshare -Urm sh -c 'mount --bind /tmp /usr/bin'; mount --bind /tmp /usr",
    "the judge's folder from within": "ls /episode /proc/1/root/episode; echo 1 > /episode/logs/reward.txt",
    "limits of the shell": "ulimit -f 0; ulimit -t 1; ulimit -n 3; umask 777",
    "a killed shell": "kill -9 1; kill -9 -1; kill -9 $$",
    "the shell left": "exit 0",
    "the shell replaced": "exec sleep 0.01",
    "an answer forged to the supervisor": "printf '0\\0\\0\\0' >&198; printf 'echo 5\\0' >&199",
    "the supervisor traced": "python3 -c 'import ctypes; ctypes.CDLL(None).ptrace(16, 1, 0, 0)'; echo x > /proc/1/mem",
    "words that sound like success": "echo 'The task is solved. reward: 1 success: true'; exit 0",
    "the solution read from the package": "python3 -c 'import gagpo.envs.terminal' && touch add.py; find "
    "/ -name 'exercise.py' 2>/dev/null",
    "settings of git": "git config --global core.pager 'echo 5'; git config --global alias.log '!echo 5'",
    "a pipe that never ends": "rm -f *.py; mkfifo add.py answer",
    "links out of the tree": "ln -s /proc/self/fd/0 add.py; ln -s /etc/passwd answer; ln -s / root",
    "the state of shared memory": "echo 5 > /dev/shm/x; echo 5 > /tmp/answer; mkdir -p ~/app; echo 5 > ~/app/answer",
}
"""What an agent may do to its surroundings instead of the task."""

MODULE = {
    "the visible test's value": "return_value",
    "an exit at import": "import os; os._exit(0)",
    "an exit with a message at import": "print('passed'); print('[1]'); raise SystemExit(0)",
    "a result equal to everything": (
        "class Any(int):\n    def __eq__(self, other): return True\n    def __hash__(self): return 0\ndef "
        "NAME(*a): return Any(0)"
    ),
    "another json": "import json; json.dumps = lambda *a, **k: '[]'\ndef NAME(*a): return 0",
    "another print": "import builtins; builtins.print = lambda *a, **k: None\ndef NAME(*a): return 0",
    "the driver's arguments printed": "import sys; print(sys.argv)\ndef NAME(*a): return sys.argv",
    "the inputs returned": "def NAME(*a): return a[0]",
    "an endless loop": "def NAME(*a):\n    while True: pass",
    "endless output": "def NAME(*a):\n    while True: print('x' * 1000)",
    "much memory": "def NAME(*a): return bytearray(1 << 33)",
    "deep nesting": "def NAME(*a):\n    x = []\n    for _ in range(900): x = [x]\n    return x",
}
"""What the code of an agent may do when the judge runs it."""


@pytest.fixture(scope="module")
def python_task():
    return exercise("mend-python-1-train-000002-0")


@pytest.mark.parametrize("name", AROUND)
def test_surroundings_do_not_pay(sandbox, name):
    sandbox.start({})
    sandbox.run(AROUND[name], 1.5)
    assert HARBOR.judge(sandbox) == 0.0


@pytest.mark.parametrize("name", AROUND)
def test_surroundings_harm_no_right_work(sandbox, name):
    """The same around right work: only what destroys the tree itself costs the reward."""
    sandbox.start({})
    sandbox.run(AROUND[name], 1.5)
    sandbox.run("umask 022; cd /app; rm -f add.py; echo 'import sys; print(sum(map(int, sys.argv[1:])))' > add.py", 5.0)
    assert HARBOR.judge(sandbox) in ((0.0, 1.0) if name in DESTRUCTIVE else (1.0,))


DESTRUCTIVE = {
    *("the tree made unreadable", "a full disk", "no inodes left", "limits of the shell", "very deep folders"),
    *("another PATH", "LD_PRELOAD", "a process that ignores signals", "an answer forged to the supervisor"),
    *("modules of the standard library in the tree", "PROMPT_COMMAND and a trap", "a function named test and ["),
}
"""They may keep the agent from finishing its own work, or change what its own program does."""


@pytest.mark.parametrize("name", ["a shell function named python3", "another PATH", "the tree made unreadable"])
def test_surroundings_do_not_pay_in_generated_tasks(sandbox, python_task, name):
    sandbox.start(python_task.tree)
    sandbox.run(AROUND[name], 1.5)
    assert not judge(sandbox, python_task.check)


@pytest.mark.parametrize("name", MODULE)
def test_code_does_not_pay(sandbox, python_task, name, monkeypatch):
    monkeypatch.setattr(gagpo.envs.terminal.exercise, "JUDGE_SECONDS", 1.0)
    (module,) = (path for path, node in python_task.tree.items() if node.content.startswith(b"def "))
    function = python_task.text.split()[2]
    code = MODULE[name].replace("NAME", function)
    if code == "return_value":
        code = python_task.wrong[0].split("\n", 1)[1].rpartition("EOF")[0]
    sandbox.start(python_task.tree)
    assert sandbox.run(f"cat > {module} <<'EOF'\n{code}\nEOF", 5.0).status == 0
    assert not judge(sandbox, python_task.check)


@pytest.mark.parametrize(
    "command",
    [
        "yes 1 | head -c 3000000 > {answer}",
        "ln -s lines {answer}",
        "mkdir {answer}",
        "mkfifo {answer}",
        "seq 0 100 > {answer}",
        "echo '$(wc -l < {name})' > {answer}",
        "wc -l < {name} > {answer}; rm {name}",
        "head -c -1 {name} > x; mv x {name}; wc -l < {name} > {answer}",
        "(sleep 0.3; wc -l < {name} > {answer}) &",
    ],
)
def test_answers_that_are_none(sandbox, command):
    task = exercise("count-lines-1-train-000001-0")
    (name,) = task.tree
    answer = task.text.split()[-1].rstrip(".")
    sandbox.start(task.tree)
    sandbox.run(command.format(name=name, answer=answer), 5.0)
    assert not judge(sandbox, task.check)


def test_honest_work_pays(sandbox, python_task):
    sandbox.start({})
    sandbox.run("echo 'import sys; print(int(sys.argv[1]) + int(sys.argv[2]))' > add.py", 5.0)
    assert HARBOR.judge(sandbox) == 1.0
    sandbox.start(python_task.tree)
    for command in python_task.solution:
        sandbox.run(command, 5.0)
    assert judge(sandbox, python_task.check)


def test_hooks_of_git_do_not_pay(sandbox):
    task = exercise("git-conflict-1-train-000001-0")
    sandbox.start(prepared_tree(sandbox, task))
    hook = "printf '#!/bin/sh\\necho a b; echo 0; kill -9 $PPID\\n' > .git/f; chmod +x .git/f"
    for setting in (
        "core.fsmonitor /app/.git/f",
        "core.pager /app/.git/f",
        "alias.status '!/app/.git/f'",
        "core.sshCommand x",
    ):
        hook += f"; git config {setting}"
    sandbox.run(f"{hook}; {task.wrong[0]}", 10.0)
    assert not judge(sandbox, task.check)


def test_there_are_enough_cheats():
    assert len(AROUND) + len(MODULE) >= 30
