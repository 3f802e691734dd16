"""Processes of pods without a cluster: started as the images start them, with what a pod mounts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from millrace.guard import die_with
from millrace.homes import pods
from millrace.homes.passwords import secret_data
from millrace.homes.pods import Role
from millrace_e2e.valkey import free_port
from millrace_e2e.waiting import until

WAIT_S = 120.0
PASSWORD = "a" * 40
ROOT = "o" * 48
TOPOLOGY = "words"
UID = "uid-1"


def make_secret(folder: Path, *passwords: str) -> Path:
    """What the Secret of an operator that knows no root looks like where it is mounted."""
    folder.mkdir(exist_ok=True)
    (folder / pods.PASSWORD_KEY).write_text("\n".join(passwords or [PASSWORD]) + "\n")
    (folder / pods.RUN_KEY).write_text("r" * 64)
    return folder


def secret_of(uid: str = UID, root: str = ROOT, shared: str = PASSWORD) -> dict[str, str]:
    """What the Secret of a topology holds: of the operator, a password for each member."""
    held = {pods.ROOT_KEY: root, pods.RUN_KEY: "r" * 64, pods.PASSWORD_KEY: f"{shared}\n"}
    return held | secret_data(TOPOLOGY, uid, held)


def mounted(folder: Path, held: Mapping[str, str], role: str, name: str = "") -> Path:
    """What a pod called ``name`` finds of the Secret in its folder, as docs/pods.md says."""
    own = {pods.password_key(name): pods.PASSWORD_KEY}
    files = {
        Role.STATE_SERVER: {**own, pods.ACCEPTED_KEY: pods.ACCEPTED_KEY},
        Role.ACKER: own,
        Role.EXECUTOR: {pods.RUN_KEY: pods.RUN_KEY},
        Role.DRIVER: {key: key for key in held},
    }[Role(role)]
    folder.mkdir(parents=True, exist_ok=True)
    for key, file in files.items():
        # As a kubelet does: nobody reads half of it.
        draft = folder / f".{file}"
        draft.write_text(held[key])
        draft.replace(folder / file)
    return folder


def environment(pod: str, **more: str) -> dict[str, str]:
    """What the operator renders; nothing else of Millrace's comes from this process."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("MILLRACE_", "KUBE"))}
    return given | {
        pods.POD_NAME: pod,
        pods.POD_NAMESPACE: "default",
        pods.POD_IP: "127.0.0.1",
        pods.TOPOLOGY: TOPOLOGY,
        pods.UID: UID,
        **more,
    }


def end_with(process: subprocess.Popen[bytes]) -> None:
    """Kill what a process that has ended leaves behind of its group, such as a JVM: with its first
    process a container ends as a whole."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class Pod:
    """A container's process in ``folder``: its log, its health port, and that of readers. SIGKILL
    by ``kill``."""

    def __init__(
        self, folder: Path, role: str, pod: str, *arguments: object, **variables: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = pod
        self.log = folder / f"{pod}.log"
        self.health_port = free_port()
        self._ended = False
        command = [sys.executable, "-m", "millrace.pods", role, *map(str, arguments)]
        command += ["--health-port", str(self.health_port)]
        self.reading_port = free_port()
        if role in (Role.DRIVER, Role.ACKER):
            command += ["--reading-port", str(self.reading_port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(pod, **variables),
                cwd=folder,
                start_new_session=True,
                preexec_fn=partial(die_with, os.getpid()),
            )

    def ask(self, path: str) -> tuple[int, str]:
        """Status and text; 0 where nobody answers."""
        url = f"http://127.0.0.1:{self.health_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return answer.status, answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode().strip()
        except OSError:
            return 0, ""

    def read(self, path: str, password: str) -> tuple[int, bytes]:
        """What readers of a state server of the user's own are told; 0 where nobody answers."""
        given = {"Authorization": f"{pods.READER} {password}"}
        url = f"http://127.0.0.1:{self.reading_port}{path}"
        try:
            asked = urllib.request.Request(url, headers=given)
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    def until(self, path: str, status: int = 200) -> str:
        """The text of the first such answer."""

        def look() -> tuple[int, str] | None:
            found = self.ask(path)
            assert self.process.poll() is None, self.log.read_text()
            return found if found[0] == status else None

        return until(look, f"{path} of {self.name} answers {status}", WAIT_S)[1]  # type: ignore[index]

    def incarnation(self) -> dict[str, str]:
        """What a state server says of itself."""
        found: dict[str, str] = json.loads(self.until(pods.INCARNATION_PATH))
        return found

    def wait(self, timeout_s: float = WAIT_S) -> int:
        """Its exit code; nothing of it is left then."""
        code = self.process.wait(timeout_s)
        if not self._ended:  # later the number may be another's
            self._ended = True
            end_with(self.process)
        return code

    def end(self) -> int:
        """Its exit code after SIGTERM."""
        self.process.terminate()
        return self.wait()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def lines(self) -> list[dict[str, Any]]:
        """Its log, without what its JVM prints by itself."""
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def __enter__(self) -> Pod:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
