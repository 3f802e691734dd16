"""Another user of the machine, who tries everything that listens and every file of a run.

``look`` runs this very file as ``nobody`` (as the same user where this one may not change): it
gets ports, sockets and paths, and answers with all that it was given.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

NOBODY = 65534

_ANSWER_S = 5.0
_BLOCKS = 12
_RPC_REQUEST, _RPC_RESPONSE, _CHUNK_REQUEST, _STREAM_REQUEST = 3, 4, 0, 6


@dataclass(frozen=True, slots=True)
class Loot:
    """What was given: answers by port and attempt, sockets that let in, files that were read."""

    answers: dict[int, dict[str, bytes]]
    sockets: list[str]
    files: dict[str, bytes]

    @property
    def everything(self) -> bytes:
        """All bytes that came."""
        parts = [data for answers in self.answers.values() for data in answers.values()]
        return b"\n".join([*parts, *self.files.values(), *(s.encode() for s in self.sockets)])


def look(
    ports: Sequence[int], sockets: Sequence[str], files: Sequence[str], pids: Sequence[int]
) -> Loot:
    """Try ports of 127.0.0.1, Unix sockets, files (folders are walked), and what ``/proc`` says."""
    files = [*files, *(f"/proc/{p}/{name}" for p in pids for name in ("cmdline", "environ"))]
    wanted = {"ports": list(ports), "sockets": list(sockets), "files": list(files)}
    done = subprocess.run(
        [sys.executable, "-I", "-S", __file__],
        input=json.dumps(wanted),
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    found = json.loads(done.stdout)
    answers = {
        int(port): {name: bytes.fromhex(data) for name, data in tried.items()}
        for port, tried in found["answers"].items()
    }
    read = {name: bytes.fromhex(data) for name, data in found["files"].items()}
    return Loot(answers, found["sockets"], read)


def _frame(kind: int, body: bytes) -> bytes:
    return struct.pack(">QB", 9 + len(body), kind) + body


def _text(value: str) -> bytes:
    return struct.pack(">I", len(value)) + value.encode()


def _open_block(block: str) -> bytes:
    """Spark's request for one block, as its block managers send it to each other."""
    body = b"\0" + _text("app") + _text("0") + struct.pack(">I", 1) + _text(block)
    return _frame(_RPC_REQUEST, struct.pack(">QI", 7, len(body)) + body)


_PROBES = {
    "silence": b"",
    "redis": b"INFO\r\nKEYS *\r\nCONFIG GET *\r\n",
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "json": b"GET /json/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    "py4j": b"r\nu\njava.lang.System\nrj\ne\nc\nz:java.lang.System\ngetenv\ne\n",
    "stream": _frame(_STREAM_REQUEST, _text("/files/x")),
}


def _ask(port: int, data: bytes) -> bytes:
    got = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as line:
        line.settimeout(_ANSWER_S)
        line.sendall(data)
        while len(got) < 1 << 20 and (more := line.recv(65536)):
            got += more
    return got


def _block(port: int, number: int) -> bytes:
    """Whatever a Spark block manager gives away of one broadcast; else its first answer."""
    got = b""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as line:
        line.settimeout(_ANSWER_S)
        line.sendall(_open_block(f"broadcast_{number}_piece0"))
        got = answer = line.recv(4096)
        if len(answer) > 8 and answer[8] == _RPC_RESPONSE:
            line.sendall(_frame(_CHUNK_REQUEST, answer[22:30] + struct.pack(">I", 0)))
            while len(got) < 1 << 20 and (more := line.recv(65536)):
                got += more
    return got


def _let_in(path: str) -> bool:
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as line:
        line.connect(path)
        return True
    return False


def _read(path: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for folder, _, names in os.walk(path):
        for name in names:
            found |= _read(os.path.join(folder, name))
    with contextlib.suppress(OSError), open(path, "rb") as file:
        found[path] = file.read(1 << 20)
    return found


def _try(port: int) -> tuple[int, dict[str, str]]:
    """All at once, on lines of their own: who has no answer is waited for as long as a line is."""
    with ThreadPoolExecutor(len(_PROBES) + _BLOCKS) as pool:
        asked = {name: pool.submit(_ask, port, data) for name, data in _PROBES.items()}
        blocks = [pool.submit(_block, port, number) for number in range(_BLOCKS)]
        tried = {name: one.result() for name, one in asked.items()}
        tried["blocks"] = b"".join(one.result() for one in blocks)
    return port, {name: data.hex() for name, data in tried.items()}


def _main() -> None:
    wanted = json.load(sys.stdin)
    if os.geteuid() == 0:
        # Only now, since the interpreter itself may lie in a folder that is closed to others.
        "a".encode("idna")
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    with ThreadPoolExecutor(64) as pool:
        answers = dict(pool.map(_try, wanted["ports"]))
    files: dict[str, bytes] = {}
    for path in wanted["files"]:
        files |= _read(path)
    json.dump(
        {
            "answers": answers,
            "sockets": [path for path in wanted["sockets"] if _let_in(path)],
            "files": {name: data.hex() for name, data in files.items()},
        },
        sys.stdout,
    )


if __name__ == "__main__":
    _main()
