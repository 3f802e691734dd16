"""The demo: counts about two million words with Millrace and checks every one of them.

    python demo.py [--words N] [--keep]          (``make demo``)
    CHAOS=1 python demo.py                       (``make demo CHAOS=1``)

The texts are the licences in /usr/share/common-licenses where they exist, else the text that the
example ships, repeated. With ``CHAOS=1`` an acker and the driver are killed by SIGKILL while a
window is in flight; the counts must be the same. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LICENCES = Path("/usr/share/common-licenses")
FILES = 8
WINDOW_LINES = 50_000
CHAOS_WINDOW_LINES = 10_000
LOOK_S = 0.01


def texts_at_hand() -> list[bytes]:
    """English texts, each once: links to other files are left out."""
    files = sorted(p for p in LICENCES.glob("*") if p.is_file() and not p.is_symlink())
    files = files or sorted((HERE / "texts").glob("*.txt"))
    return [path.read_bytes().rstrip(b"\n") + b"\n" for path in files]


def prepare(folder: Path, words: int) -> None:
    """Write at least ``words`` words into several files."""
    texts = texts_at_hand()
    round_words = sum(len(text.split()) for text in texts)
    rounds = -(-words // round_words)
    folder.mkdir()
    for number in range(FILES):
        mine = rounds // FILES + (number < rounds % FILES)
        if mine:
            (folder / f"part-{number}.txt").write_bytes(b"".join(texts) * mine)


def read_json(path: Path) -> Any:
    """A document that is replaced as a whole, or an empty one before it exists."""
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}


@dataclass(frozen=True)
class Kill:
    """One SIGKILL and the work that it hit."""

    role: str
    pid: int
    window: int
    attempt: int


@dataclass
class Watcher:
    """Looks at the run from outside and, if asked to, kills processes while a window runs."""

    state: Path
    victims: list[str]
    kills: list[Kill] = field(default_factory=list)
    first_seal: tuple[float, int] | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Until ``stop``; one kill for each victim, windows apart."""
        next_window = 2
        while not self._stop.wait(LOOK_S):
            status = read_json(self.state / "status.json")
            roots = (status.get("totals") or {}).get("roots", 0)
            if roots and self.first_seal is None:
                self.first_seal = (status["updated"], roots)
            window = status.get("window")
            if window is None:
                continue
            if len(self.kills) < len(self.victims) and window["number"] >= next_window:
                kill = self._kill(self.victims[len(self.kills)], window)
                if kill is not None:
                    self.kills.append(kill)
                    next_window = kill.window + 3

    def stop(self) -> None:
        """End ``run``."""
        self._stop.set()

    def _window(self) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self.state / "status.json").get("window")
        return found

    def _kill(self, role: str, window: dict[str, Any]) -> Kill | None:
        """Kill the process of a role; None if nothing was in flight when it died."""
        table = read_json(self.state / "processes.json")
        pids = [row["pid"] for row in table.get("processes", []) if row["role"] == role]
        if not pids or self._window() != window:
            return None
        os.kill(pids[0], signal.SIGKILL)
        if self._window() != window:
            return None
        return Kill(role, pids[0], window["number"], window["attempt"])


def run_topology(work: Path, chaos: bool) -> tuple[int, Watcher]:
    """``millrace run`` as a user starts it; its exit code, and what was seen meanwhile."""
    lines = CHAOS_WINDOW_LINES if chaos else WINDOW_LINES
    command = [
        *(sys.executable, "-m", "millrace.cli.app", "run", str(HERE / "topology.yaml")),
        *("--workdir", str(work / "state")),
        *("--set", f"spec.sources[lines].files.path={work / 'texts'}"),
        *("--set", f"spec.sinks[totals].files.path={work / 'counts'}"),
        *("--set", f"spec.window.maxRecords={lines}"),
    ]
    watcher = Watcher(work / "state", ["acker", "driver"] if chaos else [])
    thread = threading.Thread(target=watcher.run)
    thread.start()
    try:
        code = subprocess.run(command, check=False).returncode
    finally:
        watcher.stop()
        thread.join()
    return code, watcher


def check(work: Path) -> dict[str, Any]:
    """The independent count, in a process of its own."""
    command = [sys.executable, str(HERE / "count_words.py")]
    done = subprocess.run(
        [*command, str(work / "texts"), str(work / "counts")],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def summary(work: Path, watcher: Watcher, checked: dict[str, Any]) -> dict[str, Any]:
    """The object of the last line."""
    status = read_json(work / "state" / "status.json")
    totals = status.get("totals") or {}
    return {
        "equal": checked["equal"] and not checked["repeated"],
        "roots": totals.get("roots"),
        "words": checked["words"],
        "replays": totals.get("replays"),
        "bytes_per_root": bytes_per_root(work / "state"),
        "words_per_s": words_per_s(checked["words"], status, watcher),
        "windows": totals.get("windows"),
        "kills": len(watcher.kills),
        "killed": [asdict(kill) for kill in watcher.kills],
    }


def words_per_s(words: int, status: dict[str, Any], watcher: Watcher) -> int | None:
    """Words a second behind the first window, which waits for Spark to start."""
    seconds, first = watcher.first_seal or (0.0, 0)
    roots = status["totals"]["roots"]
    seconds = status["updated"] - seconds
    return round(words * (roots - first) / roots / seconds) if roots > first else None


def bytes_per_root(state: Path) -> float | None:
    """What the ackers say that they held for each root they judged."""
    command = [sys.executable, "-m", "millrace.cli.app", "status", "--json"]
    done = subprocess.run(
        [*command, "--workdir", str(state)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: float | None = json.loads(done.stdout).get("bytesPerRoot")
    return found


def show(result: dict[str, Any], checked: dict[str, Any], chaos: bool) -> None:
    """The end of the demo for people."""
    print("\nthe twenty most frequent words")
    for word, n in checked["top"]:
        print(f"  {n:>9,}  {word}")
    print()
    for kill in result["killed"]:
        print(
            f"killed {kill['role']} (process {kill['pid']}) in window {kill['window']}, "
            f"attempt {kill['attempt']}"
        )
    verdict = "equal" if result["equal"] else "NOT EQUAL"
    print(
        f"independent count of {checked['words']:,} words, {checked['distinct']:,} distinct, "
        f"against {checked['rows']:,} rows of {checked['windows']:,} windows: {verdict}"
    )
    for word, expected, found in checked["differences"]:
        print(f"  {word!r}: {expected:,} in the texts, {found:,} in the sink")
    if checked["repeated"]:
        print(f"  {checked['repeated']:,} rows were shown twice")
    if chaos and result["kills"] < 2:
        print("the run ended before both kills had hit a window in flight; use more --words")
    speed = result["words_per_s"]
    print(
        f"{result['roots']:,} roots tracked, {result['replays']:,} replays, "
        f"{result['bytes_per_root']} bytes per tracked root"
        + (f", {speed:,} words/s behind the first window" if speed else "")
    )


def main() -> int:
    """See the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--words", type=int, default=2_000_000, help="at least so many words")
    parser.add_argument("--keep", action="store_true", help="keep texts, counts and state")
    options = parser.parse_args()
    chaos = os.environ.get("CHAOS", "0") not in ("", "0")
    work = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    try:
        started = time.monotonic()
        prepare(work / "texts", options.words)
        print(f"texts in {work / 'texts'} ({time.monotonic() - started:.1f} s)", flush=True)
        code, watcher = run_topology(work, chaos)
        if code:
            return code
        checked = check(work)
        result = summary(work, watcher, checked)
        show(result, checked, chaos)
        print(json.dumps(result))
        return 0 if result["equal"] and (not chaos or len(watcher.kills) == 2) else 1
    finally:
        if options.keep:
            print(f"kept: {work}", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
