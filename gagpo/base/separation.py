"""Keep a process from reading and controlling the processes around it (Linux).

Processes of one user may read each other's environment and memory in ``/proc`` and send each other signals. A process
in a Landlock domain may do so only to the processes of its own domain and of domains below it. It neither changes users
nor hides files, so programs work as before. See https://docs.kernel.org/userspace-api/landlock.html.

Root has capabilities that lead around a domain (a packet socket reads the loopback), so a process that enters one
keeps only those for files.

Landlock does not cover calls that change the limits, processors and priorities of other processes of the user. A filter
of system calls (seccomp) allows them only for the process that calls, named by the number 0.

Where there is no Landlock, a process of any user but root enters a user namespace in which its user and group stay the
same, and cannot read processes outside of it. Root would lose its rights to the files of other users there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from functools import cache

# System calls, with the same numbers on all processors.
_CREATE_RULESET = 444
_ADD_RULE = 445
_RESTRICT_SELF = 446
_ASK_VERSION = 1  # a flag of landlock_create_ruleset
_SCOPE_SIGNAL = 1 << 1
_MOVE_BETWEEN_FOLDERS = 1 << 13
_PATH_BENEATH = 1
_SET_NO_NEW_PRIVILEGES = 38  # of prctl(2)
_CAPABILITIES_VERSION = 0x20080522  # of capset(2), with two words of 32 bits for each set
_FOR_FILES = {"CHOWN": 0, "DAC_OVERRIDE": 1, "DAC_READ_SEARCH": 2, "FOWNER": 3, "FSETID": 4}
"""The capabilities for files. Others read other processes (PERFMON) or the network (NET_RAW) past Landlock."""
_SET_SECCOMP, _SECCOMP_FILTER = 22, 2  # of prctl(2)
_CALLS_OF_OTHERS = {
    # number on x86-64 and on ARM, and the arguments that must be equal to a number
    "prlimit64": (302, 261, {0: 0}),
    "sched_setaffinity": (203, 122, {0: 0}),
    "sched_setparam": (142, 118, {0: 0}),
    "sched_setscheduler": (144, 119, {0: 0}),
    "sched_setattr": (314, 274, {0: 0}),
    "migrate_pages": (256, 238, {0: 0}),
    "move_pages": (279, 239, {0: 0}),
    "setpriority": (141, 140, {0: 0, 1: 0}),  # PRIO_PROCESS
    "ioprio_set": (251, 30, {0: 1, 1: 0}),  # IOPRIO_WHO_PROCESS
}
"""System calls that change another process of the same user."""
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column of the numbers, and of audit.h
_LOAD = 0x20  # these four of BPF
_JUMP_EQUAL = 0x15
_JUMP_GREATER_EQUAL = 0x35
_RETURN = 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000  # of seccomp; an error number is added to the second
_NEW_USER_NAMESPACE = 0x10000000  # of unshare(2)
SIGNALS_SINCE, MOVES_SINCE = 6, 2  # versions of Landlock


def version() -> int:
    """The version of Landlock that the system offers; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    return max(0, _system_call(_CREATE_RULESET, None, 0, _ASK_VERSION))


def separate(landlock: int | None = None, namespaces: bool = True) -> bool:
    """Separate this process, and everything it starts from here on; False where the system cannot do it.

    For a process with a single thread: others stay outside. Programs that change users when they are started (``sudo``)
    have no effect from here on, and root cannot mount file systems. Before version 6 of Landlock (Linux 6.12) signals
    are not separated; version 1 is not used, because it forbids moving files between folders.

    landlock: the version to use, by default the system's.
    namespaces: whether a user namespace may replace Landlock.
    """
    chosen = version() if landlock is None else landlock
    if chosen >= MOVES_SINCE:
        return _enter_domain(chosen) and filter_system_calls()
    return namespaces and _can_enter_namespace() and _enter_namespace() and filter_system_calls()


def filter_system_calls() -> bool:
    """Forbid this process, and everything it starts, to change limits, processors and priorities of other processes.

    False where the system cannot do it, or on processors other than x86-64 and 64-bit ARM. Linux.
    """
    program = system_call_filter()
    if not program:
        return False
    library = ctypes.CDLL(None)
    library.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)  # required without SYS_ADMIN
    instructions = ctypes.create_string_buffer(program)
    description = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))  # struct sock_fprog
    return bool(library.prctl(_SET_SECCOMP, _SECCOMP_FILTER, description, 0, 0) == 0)


def system_call_filter() -> bytes:
    """The filter as a program of seccomp, such as for ``bwrap --seccomp``; b"" for an unsupported processor."""
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _ARCHITECTURES:
        return b""
    column, architecture = _ARCHITECTURES[machine]
    # Calls in another convention (32-bit, x32) have other numbers, so they do not exist here.
    lines = [(_LOAD, 0, 0, 4), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _FAIL + errno.ENOSYS)]
    lines += [(_LOAD, 0, 0, 0), (_JUMP_GREATER_EQUAL, 0, 1, 0x40000000), (_RETURN, 0, 0, _FAIL + errno.ENOSYS)]
    for *numbers, arguments in _CALLS_OF_OTHERS.values():
        checks = []
        for i, (argument, value) in enumerate(arguments.items()):
            # The low word of an argument; a mismatch jumps over the other checks and the permission.
            checks += [(_LOAD, 0, 0, 16 + 8 * argument)]
            checks += [(_JUMP_EQUAL, 0, 2 * (len(arguments) - i) - 1, value)]
        block = [*checks, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL + errno.EPERM)]
        lines += [(_JUMP_EQUAL, 0, len(block), numbers[column]), *block]
    lines.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


def _enter_domain(landlock: int) -> bool:
    """Enter a new Landlock domain."""
    rules = _scope_of_signals() if landlock >= SIGNALS_SINCE else _no_rules_for_files()
    if rules < 0:
        return False
    try:
        # Required without SYS_ADMIN. With it, no program that root starts regains the capabilities.
        ctypes.CDLL(None).prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        return _system_call(_RESTRICT_SELF, rules, 0) == 0 and _give_up_capabilities()
    finally:
        os.close(rules)


@cache
def _can_enter_namespace() -> bool:
    """Whether a process of this user can enter a namespace. A copy tries: one that fails halfway is of no use."""
    if sys.platform != "linux" or os.geteuid() == 0:
        return False
    copy = os.fork()
    if copy == 0:
        try:
            os._exit(0 if _enter_namespace() else 1)
        finally:
            os._exit(1)
    return os.waitpid(copy, 0)[1] == 0


def _enter_namespace() -> bool:
    """Enter a user namespace with the same user and group; OSError if they cannot be the same."""
    user, group = os.geteuid(), os.getegid()
    if ctypes.CDLL(None).unshare(_NEW_USER_NAMESPACE) != 0:
        return False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return True


def _give_up_capabilities() -> bool:
    """Give up for good all capabilities but ``_FOR_FILES``; False if the system refuses."""
    library = ctypes.CDLL(None)
    header = struct.pack("<Ii", _CAPABILITIES_VERSION, 0)
    # effective, permitted and inheritable; their lower, then their upper words, of four bytes each
    capabilities = ctypes.create_string_buffer(24)
    if library.capget(header, capabilities) != 0:
        return False
    fields = list(struct.unpack("<6I", capabilities.raw))
    for_files = sum(1 << number for number in _FOR_FILES.values())
    fields = [word & for_files for word in fields[:3]] + [0, 0, 0]
    return bool(library.capset(header, struct.pack("<6I", *fields)) == 0)


def _scope_of_signals() -> int:
    """A ruleset that limits signals and nothing else; negative if the system refuses."""
    attributes = struct.pack("<QQQ", 0, 0, _SCOPE_SIGNAL)
    return _system_call(_CREATE_RULESET, attributes, len(attributes), 0)


def _no_rules_for_files() -> int:
    """A ruleset that allows what it names, since an empty one is invalid; negative if the system refuses."""
    attributes = struct.pack("<Q", _MOVE_BETWEEN_FOLDERS)
    rules = _system_call(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return rules
    everywhere = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = struct.pack("<Qi", _MOVE_BETWEEN_FOLDERS, everywhere)
        if _system_call(_ADD_RULE, rules, _PATH_BENEATH, allowed, 0) != 0:
            os.close(rules)
            return -1
    finally:
        os.close(everywhere)
    return rules


def _system_call(number: int, *arguments: int | bytes | None) -> int:
    """The result of a system call, -1 for an error."""
    registers = [ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in arguments]
    return int(ctypes.CDLL(None).syscall(ctypes.c_long(number), *registers))
