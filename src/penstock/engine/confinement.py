"""The rights that a process gives up before it runs Lua, so that an attacker who breaks out of Lua gains little.

Afterwards it can read Python's own files and the store, compute, and talk on the connections that it has. It cannot
write, create or delete files, start programs or processes, open connections, or reach other processes. Linux has two
means for that: Landlock restricts paths, and seccomp restricts system calls. Each works without the other; a system
that has neither still has resource limits.

The filter lists the system calls that are allowed, so it refuses those that later kernels add. Most are refused as
unknown (ENOSYS), because the C library then falls back to an older one: from clone3 to clone for threads, for example.
"""

import ctypes
import errno
import os
import platform
import resource
import signal
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

OPEN_FILES_MAX: Final = 64
REFUSED: Final = errno.EACCES
"""The answer to allowed system calls with forbidden arguments. SQLite then opens its files read-only."""


LIBRARIES: Final = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo")
"""Where modules in C that are imported late find what they need."""


def python_places() -> list[Path]:
    """Where Python's modules are, without the directory that the process was started in."""
    return [Path(path) for path in (*(sys.path if sys.flags.safe_path else sys.path[1:]), *LIBRARIES)]


def confine(readable: Iterable[Path], start_threads: Callable[[], object]) -> list[str]:
    """Give up rights for good; returns the means that this system does not offer.

    The process can read what is below the given paths, and nothing else. `start_threads` starts all threads that it
    needs, because RLIMIT_NPROC refuses later ones.
    """
    # The connection to the server may have a larger number, and still works.
    _limit(resource.RLIMIT_NOFILE, OPEN_FILES_MAX)
    _limit(resource.RLIMIT_CORE, 0)
    missing = [*_without("no new privileges", harden), *_without("Landlock", partial(_landlock, readable))]
    # Landlock holds for threads that are started after it.
    start_threads()
    _limit(resource.RLIMIT_NPROC, 0)
    return [*missing, *_without("seccomp", _seccomp)]


def enclose(readable: Iterable[Path], writable: Iterable[Path]) -> list[str]:
    """Give up all files but those below these paths, and all connections; returns the means that are missing.

    It is for a process that keeps its threads and system calls.
    """
    return [*_without("no new privileges", harden), *_without("Landlock", partial(_landlock, readable, writable))]


def _without(name: str, step: Callable[[], object]) -> list[str]:
    """Take a step, and name what it was about if the system refuses it."""
    try:
        step()
    except OSError as error:
        return [f"{name} ({error.strerror})"]
    return []


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


# --- calls of the kernel --------------------------------------------------------------------------------------

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_DUMPABLE: Final = 4
_PR_SET_NAME: Final = 15
_PR_SET_NO_NEW_PRIVS: Final = 38


def _call(number: int, *arguments: int | bytes) -> int:
    """A system call. Bytes are handed over by their address."""
    return _checked("syscall", number, *arguments)


def _checked(function: str, *arguments: int | bytes) -> int:
    if platform.system() != "Linux":
        raise OSError(errno.ENOSYS, f"not on {platform.system()}")
    given = (one if isinstance(one, bytes) else ctypes.c_long(one) for one in (*arguments, 0, 0, 0, 0))
    result = int(getattr(ctypes.CDLL(None, use_errno=True), function)(*given))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def harden() -> None:
    """No program gives it more rights, no process of the same user looks into it, and it ends with its parent."""
    _checked("prctl", _PR_SET_NO_NEW_PRIVS, 1)
    _checked("prctl", _PR_SET_DUMPABLE, 0)
    _checked("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)


# --- Landlock: which files ------------------------------------------------------------------------------------

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET: Final = Struct("=QQQ")
_BELOW_PATH: Final = Struct("=Qi")
_READ_FILE: Final = 1 << 2
_READ_DIRECTORY: Final = 1 << 3
_FILE_RIGHTS: Final = {1: 13, 2: 14, 3: 15, 5: 16}
"""How many rights there are since which version: all that a version knows are given up."""
_TCP_SINCE: Final = 4
_SCOPES_SINCE: Final = 6
"""Since then processes outside cannot be sent signals, nor be connected to by abstract names."""


def _landlock(readable: Iterable[Path], writable: Iterable[Path] = ()) -> None:
    version = _call(_CREATE_RULESET, 0, 0, 1)
    files = (1 << max(count for since, count in _FILE_RIGHTS.items() if since <= version)) - 1
    tcp, scopes = (0b11 if version >= since else 0 for since in (_TCP_SINCE, _SCOPES_SINCE))
    rules = _call(_CREATE_RULESET, _RULESET.pack(files, tcp, scopes), _RULESET.size)
    try:
        for path in readable:
            _allow(rules, path, _READ_FILE, _READ_DIRECTORY)
        for path in writable:
            _allow(rules, path, 0, files)
        _call(_RESTRICT_SELF, rules)
    finally:
        os.close(rules)


def _allow(rules: int, path: Path, of_files: int, of_directories: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # A path that does not exist needs no rule.
    try:
        rights = of_files | (of_directories if path.is_dir() else 0)
        _call(_ADD_RULE, rules, 1, _BELOW_PATH.pack(rights, place))
    finally:
        os.close(place)


# --- seccomp: which system calls ------------------------------------------------------------------------------


class _Machine(NamedTuple):
    """How a kind of processor is called, and its numbers of system calls."""

    audit: int
    calls: dict[str, int]


# fmt: off
_MACHINES: Final = {
    "x86_64": _Machine(0xC000003E, {
        "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "fstat": 5, "lstat": 6, "poll": 7, "lseek": 8,
        "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12, "rt_sigaction": 13, "rt_sigprocmask": 14,
        "rt_sigreturn": 15, "ioctl": 16, "pread64": 17, "readv": 19, "writev": 20, "access": 21, "select": 23,
        "sched_yield": 24, "mremap": 25, "madvise": 28, "nanosleep": 35, "getpid": 39, "sendto": 44, "recvfrom": 45,
        "sendmsg": 46, "recvmsg": 47, "shutdown": 48, "getsockname": 51, "getpeername": 52, "getsockopt": 55,
        "clone": 56, "exit": 60, "kill": 62, "uname": 63, "fcntl": 72, "flock": 73, "getcwd": 79, "readlink": 89,
        "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "getuid": 102, "getgid": 104, "geteuid": 107,
        "getegid": 108, "getppid": 110, "sigaltstack": 131, "prctl": 157, "gettid": 186, "time": 201, "futex": 202,
        "sched_getaffinity": 204, "getdents64": 217, "restart_syscall": 219, "clock_gettime": 228,
        "clock_getres": 229, "clock_nanosleep": 230, "exit_group": 231, "epoll_wait": 232, "epoll_ctl": 233,
        "tgkill": 234, "openat": 257, "newfstatat": 262, "readlinkat": 267, "faccessat": 269, "pselect6": 270,
        "ppoll": 271, "set_robust_list": 273, "epoll_pwait": 281, "epoll_create1": 291, "preadv": 295,
        "getcpu": 309, "seccomp": 317, "getrandom": 318, "membarrier": 324, "statx": 332, "rseq": 334,
        "faccessat2": 439,
    }),
    "aarch64": _Machine(0xC00000B7, {
        "getcwd": 17, "epoll_create1": 20, "epoll_ctl": 21, "epoll_pwait": 22, "fcntl": 25, "ioctl": 29,
        "flock": 32, "faccessat": 48, "openat": 56, "close": 57, "getdents64": 61, "lseek": 62, "read": 63,
        "write": 64, "readv": 65, "writev": 66, "pread64": 67, "preadv": 69, "pselect6": 72, "ppoll": 73,
        "readlinkat": 78, "newfstatat": 79, "fstat": 80, "exit": 93, "exit_group": 94, "futex": 98,
        "set_robust_list": 99, "nanosleep": 101, "clock_gettime": 113, "clock_getres": 114, "clock_nanosleep": 115,
        "sched_getaffinity": 123, "sched_yield": 124, "restart_syscall": 128, "kill": 129, "tgkill": 131,
        "sigaltstack": 132, "rt_sigaction": 134, "rt_sigprocmask": 135, "rt_sigreturn": 139, "uname": 160,
        "getrusage": 165, "prctl": 167, "getcpu": 168, "gettimeofday": 169, "getpid": 172, "getppid": 173,
        "getuid": 174, "geteuid": 175, "getgid": 176, "getegid": 177, "gettid": 178, "sysinfo": 179,
        "getsockname": 204, "getpeername": 205, "sendto": 206, "recvfrom": 207, "getsockopt": 209, "shutdown": 210,
        "sendmsg": 211, "recvmsg": 212, "brk": 214, "munmap": 215, "mremap": 216, "clone": 220, "mmap": 222,
        "mprotect": 226, "madvise": 233, "seccomp": 277, "getrandom": 278, "membarrier": 283, "statx": 291,
        "rseq": 293, "faccessat2": 439,
    }),
}
# fmt: on

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_THREADS: Final = (0x3D0F00, 0x7D0F00)
"""The flags with which glibc and musl start a thread."""
_FCNTL: Final = (1, 2, 3, 4, 5, 6, 7, 36, 37, 38)
"""Flags and locks. F_SETOWN and F_SETSIG would send signals to others."""
_IOCTL: Final = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)
"""Whether it is a terminal, how much there is to read, whether it blocks, whether programs inherit it."""

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _IF_EQUAL, _IF_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER, _AUDIT, _ARGUMENTS = 0, 4, 16
_INSTRUCTION: Final = Struct("=HBBI")
_PROGRAM: Final = Struct("@HP")
_ALL_THREADS: Final = 1


def _of_machine() -> _Machine:
    try:
        return _MACHINES[platform.machine()]
    except KeyError:
        raise OSError(errno.ENOSYS, f"not known for {platform.machine()}") from None


def _seccomp() -> None:
    machine = _of_machine()
    steps = _filter(machine)
    code = ctypes.create_string_buffer(b"".join(steps))
    _call(machine.calls["seccomp"], 1, _ALL_THREADS, _PROGRAM.pack(len(steps), ctypes.addressof(code)))


def _filter(machine: _Machine) -> list[bytes]:
    """The program that the kernel asks before each system call."""
    conditions = {
        "open": _none_of_bits(1, _WRITING),
        "openat": _none_of_bits(2, _WRITING),
        "clone": _one_of(0, _THREADS),
        "fcntl": _one_of(1, _FCNTL),
        "ioctl": _one_of(1, _IOCTL),
        "kill": _one_of(0, (os.getpid(),)),
        "tgkill": _one_of(0, (os.getpid(),)),
        "prctl": _one_of(0, (_PR_SET_NAME,)),
        "seccomp": [_return(_ERRNO | REFUSED)],
    }
    program = [_load(_AUDIT), _jump(_IF_EQUAL, machine.audit, 1, 0), _return(_KILL), _load(_NUMBER)]
    for name, number in machine.calls.items():
        then = conditions.get(name, [_return(_ALLOW)])
        program += [_jump(_IF_EQUAL, number, 0, len(then)), *then]
    return [*program, _return(_ERRNO | errno.ENOSYS)]


def _one_of(argument: int, values: Iterable[int]) -> list[bytes]:
    """Allowed if the lower half of an argument is one of some values."""
    allowed = [step for value in values for step in (_jump(_IF_EQUAL, value, 0, 1), _return(_ALLOW))]
    return [_load(_ARGUMENTS + 8 * argument), *allowed, _return(_ERRNO | REFUSED)]


def _none_of_bits(argument: int, bits: int) -> list[bytes]:
    """Allowed if the lower half of an argument has none of some bits."""
    refused = [_jump(_IF_ANY_BIT, bits, 0, 1), _return(_ERRNO | REFUSED)]
    return [_load(_ARGUMENTS + 8 * argument), *refused, _return(_ALLOW)]


def _load(offset: int) -> bytes:
    return _INSTRUCTION.pack(_LOAD, 0, 0, offset)


def _jump(kind: int, value: int, if_so: int, if_not: int) -> bytes:
    return _INSTRUCTION.pack(kind, if_so, if_not, value)


def _return(verdict: int) -> bytes:
    return _INSTRUCTION.pack(_RETURN, 0, 0, verdict)
