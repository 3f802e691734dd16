"""Between which lines a call does what others can notice; between the others a death is the same.

At a line the process forks. The fork goes on under a filter of the kernel (seccomp) that ends it at
the first system call that is not harmless, and notes in shared memory how far it came. The process
waits for that, runs on to the line behind, and forks there again. All lines that one fork came to
are one *part* of the call: nothing happened between them but in memory. (The clock can be read from
memory, and ends no part.)

Where that cannot be known every line is a part of its own: on machines whose system calls are not
listed here, where the kernel refuses the filter, and while the process has other threads or shares
memory with others, which need no system call to be noticed.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import signal
import struct
from contextlib import suppress
from pathlib import Path
from typing import Literal

Noticed = Literal["changes", "looks"]
"""What ends a part: whatever others can notice; or also every look of its own at the world."""

_PATIENCE_S = 10
"""Longest life of a fork; one that waits in vain for a thread it has lost proves nothing."""

_X86_64 = dict(  # noqa: C408 shorter than quoted names
    brk=12, clock_gettime=228, exit=60, exit_group=231, futex=202, getegid=108, geteuid=107,
    getgid=104, getpid=39, getppid=110, getrandom=318, gettid=186, getuid=102, madvise=28, mmap=9,
    mprotect=10, mremap=25, munmap=11, rt_sigaction=13, rt_sigprocmask=14, rt_sigreturn=15,
    sched_yield=24,
    access=21, close=3, faccessat=269, faccessat2=439, fstat=5, getcwd=79, lstat=6, newfstatat=262,
    openat=257, pread64=17, readlink=89, readlinkat=267, stat=4, statx=332,
)  # fmt: skip
_AARCH64 = dict(  # noqa: C408
    brk=214, clock_gettime=113, exit=93, exit_group=94, futex=98, getegid=177, geteuid=175,
    getgid=176, getpid=172, getppid=173, getrandom=278, gettid=178, getuid=174, madvise=233,
    mmap=222, mprotect=226, mremap=216, munmap=215, rt_sigaction=134, rt_sigprocmask=135,
    rt_sigreturn=139, sched_yield=124,
    close=57, faccessat=48, faccessat2=439, fstat=80, getcwd=17, newfstatat=79, openat=56,
    pread64=67, readlinkat=78, statx=291,
)  # fmt: skip
_NUMBERS = {"x86_64": (0xC000003E, _X86_64), "aarch64": (0xC00000B7, _AARCH64)}
"""Machine: its name in the kernel, and the numbers of the system calls that change nothing."""

# A fork shares the positions in its files, so that read() and lseek() are none of them. close() may
# let go of a lock, which a death does as well.
_LOOKS = frozenset(
    ["close", "fstat", "stat", "lstat", "pread64", "access", "getcwd", "readlink", "openat",
     "newfstatat", "readlinkat", "faccessat", "statx", "faccessat2"]
)  # fmt: skip

_MAP_SHARED = 1
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_TRAP, _ALLOW = 0x0003_0000, 0x7FFF_0000
_LOAD, _JUMP_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x45, 0x06
_AT_NUMBER, _AT_MACHINE, _AT_ARGUMENTS = 0, 4, 16

# Opened at import, since nothing may be loaded between a fork and what follows it.
_LIBC = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class Parts:
    """Numbers the parts of one call, told of each line that it comes to."""

    def __init__(self, noticed: Noticed) -> None:
        self._filter = _filter(noticed)
        self._shared = mmap.mmap(-1, 8)
        self._is_fork = False
        self._part = -1
        self._reached = -1

    def at(self, line: int) -> int:
        """The part that line number ``line`` (from 0, in order) belongs to."""
        if self._is_fork:
            self._shared[:] = line.to_bytes(8, "little")
        elif line > self._reached:
            self._part += 1
            self._reached = self._ahead(line)
        return self._part

    def end(self) -> None:
        """The call is over. A fork ends here."""
        if self._is_fork:
            os._exit(0)
        self._shared.close()

    def _ahead(self, line: int) -> int:
        """The last line that a fork comes to from here."""
        if self._filter is None or not _is_alone():
            return line
        self._shared[:] = line.to_bytes(8, "little")
        pid = os.fork()
        if pid == 0:
            self._is_fork = True
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(_PATIENCE_S)
            if not _install(self._filter):
                os._exit(1)
            return line
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        return int.from_bytes(self._shared[:], "little")


def _is_alone() -> bool:
    """Whether what this process does is seen by its system calls."""
    if len(os.listdir("/proc/self/task")) > 1:
        return False
    shared = [line for line in Path("/proc/self/maps").read_text().splitlines() if "rw-s" in line]
    return len(shared) == 1  # that of the parts


def _filter(noticed: Noticed) -> bytes | None:
    """The program of the kernel's filter; ``None`` for a machine that is not known."""
    machine, numbers = _NUMBERS.get(platform.machine(), (0, {}))
    if not numbers:
        return None
    harmless = [name for name in numbers if noticed == "changes" or name not in _LOOKS]
    program = [
        _load(_AT_MACHINE),
        _jump(_JUMP_EQUAL, machine, 1, 0),
        _return(_TRAP),
        _load(_AT_NUMBER),
    ]
    for name in harmless:
        program += _allowed(numbers[name], name)
    return b"".join([*program, _return(_TRAP)])


def _allowed(number: int, name: str) -> list[bytes]:
    """Lets a system call through, where its flags promise that nothing changes."""
    flags = {"openat": (2, _WRITING), "mmap": (3, _MAP_SHARED)}.get(name)
    if flags is None:
        return [_jump(_JUMP_EQUAL, number, 0, 1), _return(_ALLOW)]
    argument, harmful = flags
    return [
        _jump(_JUMP_EQUAL, number, 0, 4),
        _load(_AT_ARGUMENTS + 8 * argument),
        _jump(_JUMP_SET, harmful, 0, 1),
        _return(_TRAP),
        _return(_ALLOW),
    ]


def _load(at: int) -> bytes:
    return struct.pack("=HBBI", _LOAD, 0, 0, at)


def _jump(kind: int, value: int, then: int, otherwise: int) -> bytes:
    return struct.pack("=HBBI", kind, then, otherwise, value)


def _return(value: int) -> bytes:
    return struct.pack("=HBBI", _RETURN, 0, 0, value)


def _install(program: bytes) -> bool:
    """From here on a system call that the filter does not let through ends this process."""
    # The C library's own function takes the signal: one that kills would leave a core.
    _LIBC.signal(signal.SIGSYS, ctypes.cast(_LIBC._exit, ctypes.c_void_p))
    prog = _Program(len(program) // 8, program)
    allowed = _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    filtered = ctypes.byref(prog)
    return allowed and int(_LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filtered, 0, 0)) == 0
