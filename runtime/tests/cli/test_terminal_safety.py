"""Nothing that comes from data steers the terminal that it is shown on."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from cli_support import topology
from rich.table import Table
from rich.text import Text

from millrace.cli import list_, output, state
from millrace.cli.output import SafeConsole, visible
from millrace.cli.progress import Lines, Panel
from millrace.clock import SystemClock
from millrace.errors import MillraceError
from millrace.homes.documents import RunEvent
from millrace.local.files import write_json
from millrace.local.inspect.letters import Letter
from millrace.local.inspect.state import StateRows
from millrace.local.logs import RunLog
from millrace.local.workdir import open_folder
from millrace.state.journalfiles import JournalFiles

MARKUP = r"\[/b] \[link=x]y :key: \[0] [bold]z [/]"
EVIL = f"a\x1b[2J\x1b]0;owned\x07b\x9b31mc\rd\u202e{MARKUP}e\x00f"
SHOWN = rf"a\x1b[2J\x1b]0;owned\x07b\x9b31mc\x0dd\u202e{MARKUP}e\x00f"
SPEC = """
  sources: [{name: lines, files: {path: texts}}]
  sinks: [{name: out, inputs: [{from: lines}], files: {path: out}}]
"""


def in_terminal(*arguments: str, cwd: Path) -> str:
    """What ``millrace`` writes to a terminal that knows no colours, both outputs together."""
    ours, theirs = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "millrace.cli.app", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        cwd=cwd,
        env={**os.environ, "NO_COLOR": "1", "TERM": "dumb"},
    ):
        os.close(theirs)
        written = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # how Linux says that the other end is closed
                break
            if not data:
                break
            written += data
    os.close(ours)
    return written.replace(b"\r\n", b"\n").decode()


def steering(text: str) -> list[str]:
    return [c for c in text if c not in "\n\t" and visible(c) != c]


def test_one_function_writes_out_what_steers() -> None:
    assert visible(EVIL) == SHOWN
    assert visible("tab\tand\nline, é 漢 🙂") == "tab\tand\nline, é 漢 🙂"
    assert visible("\ud800\x85\u2028") == r"\ud800\x85\u2028"
    assert steering(visible("".join(map(chr, range(0x3000))))) == []


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A topology that has run, and whose files were written by somebody hostile."""
    file = topology(tmp_path, SPEC)
    folder = open_folder(tmp_path / ".millrace" / "first", "first", file, SystemClock())
    figures = {"state": EVIL, "phase": EVIL, "totals": {"roots": 1, "windows": 1, "replays": 0}}
    totals = {**figures["totals"], "dropped": 0}
    numbers = {"sealed": 1, "published": 1, "pendingReplays": 0, "deadLetters": 0, "execution": 1}
    write_json(folder.status, {**figures, **numbers, "totals": totals, "epoch": 1})
    (folder.logs / "driver.log").write_text(f"{EVIL}\n", newline="")
    identity = json.loads((folder.path / "identity.json").read_text())
    write_json(folder.path / "identity.json", {**identity, "topology": f"/x/{EVIL}"})
    return tmp_path


@pytest.mark.parametrize(
    "arguments",
    [
        ("status",),
        ("list",),
        ("logs",),
        ("validate", f"no{EVIL[:-2]}.yaml"),
        ("validate", "topology.yaml", "--set", f"spec.code.path={EVIL[:-2]}"),
        ("validate", "topology.yaml", "--set", f"spec.{EVIL[:-2]}=1"),
        ("describe", "odd.yaml"),
        ("dead-letters", "show", f"{EVIL[:-2]}"),
        ("validate", "topology.yaml", f"{EVIL[:-2]}"),
        ("status", f"--{EVIL[:-2]}"),
        ("stop", "--timeout", f"{EVIL[:-2]}"),
    ],
    ids=lambda arguments: " ".join(arguments)[:16],
)
def test_no_command_passes_on_what_steers(place, arguments) -> None:
    (place / "odd.yaml").write_text(
        (place / "topology.yaml").read_text().replace("path: texts", 'path: "te\\x1b[2Jxts"')
    )
    text = in_terminal(*arguments, cwd=place)
    assert text.strip()
    assert steering(text) == []


def test_everything_that_is_drawn_is_made_safe() -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system=None, width=200)
    table = Table(EVIL)
    table.add_row(Text(EVIL), EVIL)
    console.print(table, EVIL, Text(EVIL, "bold"), soft_wrap=True)
    assert steering(out.getvalue()) == []
    assert out.getvalue().count(r"\x1b]0;owned") >= 4


@pytest.fixture
def at_terminal(monkeypatch) -> io.StringIO:
    """What commands draw, as for a terminal with colours that is wide enough."""
    out = io.StringIO()

    def wide(**settings) -> SafeConsole:
        settings.pop("stderr")
        return SafeConsole(file=out, force_terminal=True, width=400, **settings)

    monkeypatch.setattr(output, "SafeConsole", wide)
    return out


def test_what_looks_like_markup_or_emoji_is_shown_as_it_is(at_terminal, monkeypatch, place) -> None:
    output.print_error(MillraceError(EVIL))
    output.print_warning(EVIL)
    output.print_note(EVIL)
    rows = pa.RecordBatch.from_pydict({"word": [EVIL], "n": [1]})
    state._print(StateRows(9, 1, rows), False)
    row = dict.fromkeys(("name", "state", "sealed", "roots", "deadLetters"), 1)
    monkeypatch.setattr(list_, "row_of", lambda _: {**row, "topology": EVIL})
    app = typer.Typer()
    list_.register(app)
    app.registered_commands[0].callback(folder=place)
    assert at_terminal.getvalue().count(SHOWN) == 5
    assert "\x1b]8" not in at_terminal.getvalue()


def test_json_of_state_stays_json_and_steers_nothing(capsys) -> None:
    harm = f"{EVIL}\x7f\x80\u2028"
    rows = pa.RecordBatch.from_pydict({harm: [harm], "n": [1]})
    state._print(StateRows(9, 1, rows), True)
    shown = capsys.readouterr().out
    assert steering(shown) == []
    assert json.loads(shown) == {"window": 9, "key": {harm: harm}, "state": {"n": 1}}


@pytest.mark.parametrize("kind", [Lines, Panel])
def test_progress_events_and_output_of_a_run_are_made_safe(kind, tmp_path) -> None:
    write_json(tmp_path / "status.json", {"state": EVIL, "updated": 1e12, "execution": 1})
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=True, color_system=None, width=200)
    names = (EVIL,) if kind is Panel else ()
    display = kind(console, tmp_path, SystemClock(), *names)
    with display:
        RunLog(
            JournalFiles(tmp_path / "status.json", tmp_path / "events.jsonl"), SystemClock()
        ).add(EVIL, EVIL)
        display.progress()
        display.event(RunEvent(1.0, "Some", EVIL))
        display.output(EVIL)
    shown = out.getvalue()
    assert shown.count(r"b\x9b31mc") >= 3
    for harm in ("\x1b[2J\x1b]", "\x07", "\x9b", "\u202e", "\x00", "c\rd"):
        assert harm not in shown


def test_letters_are_shown_written_out_and_handed_over_raw(monkeypatch, capfdbinary) -> None:
    from millrace.cli import dead_letters

    payload = EVIL.encode() + b"\xff"
    letter = Letter("1.1.1.1/dead", 0, 1, "lines", 0, 5, 3, EVIL, EVIL, payload)
    monkeypatch.setattr(dead_letters, "_letters", lambda *_: (None, [letter]))
    dead_letters.show(ids=None)
    dead_letters.list_letters()
    dead_letters.show(ids=None, as_json=True)
    sys.stdout.flush()
    shown = capfdbinary.readouterr().out.decode()
    assert steering(shown) == []
    assert r"a\x1b[2J" in shown
    assert json.loads(shown.splitlines()[-1])["error"] == EVIL
    dead_letters.show(ids=None, raw=True)
    sys.stdout.flush()
    assert capfdbinary.readouterr().out == payload
