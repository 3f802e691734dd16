"""Calls whose lines say what happens in them: each ends with the part that it must belong to.

The number is that of the part where changes count, and behind it that where looks count, too.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import threading

from kitsinks import Ledger


class Changes(Ledger):
    def check(self):
        numbers = [1, 2, 3]  # 0 0
        numbers.append(4)  # 0 0
        path = self.folder / "file"  # 0 0
        path.write_text("once ")  # 0 0
        total = sum(numbers)  # 1 1
        total += 1  # 1 1
        os.rename(path, self.folder / "other")  # 1 1
        total += 1  # 2 2
        self.folder.stat()  # 2 2
        total += 1  # 2 3
        file = (self.folder / "other").open("rb", buffering=0)  # 2 3
        os.pread(file.fileno(), 1, 0)  # 2 4
        total += 1  # 2 5
        file.read(2)  # 2 5
        total += 1  # 3 6
        assert file.read(2) == b"ce"  # 3 6
        fcntl.flock(file, fcntl.LOCK_EX)  # 4 7
        file.close()  # 5 8
        total += 1  # 5 9
        one, other = socket.socketpair()  # 5 9
        one.send(b"word")  # 6 10
        total += 1  # 7 11
        assert other.recv(8) == b"word"  # 7 11
        one.close()  # 8 12
        total += 1  # 8 13


class Shares(Ledger):
    def check(self):
        self.shared = mmap.mmap(-1, 100)
        for number in range(3):
            self.shared[number] = number


class Threads(Ledger):
    def check(self):
        ready = threading.Event()
        helper = threading.Thread(target=ready.wait, daemon=True)
        helper.start()
        for number in range(3):
            self.total = number
        ready.set()
        helper.join()
