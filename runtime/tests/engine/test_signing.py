"""Nothing is unpickled, and no error is believed, that this run did not sign for the purpose."""

from __future__ import annotations

import ast
import base64
import importlib
import json
import pickle
import pkgutil
import secrets
import tempfile
from pathlib import Path

import pytest
from engine_support import write_lines

import millrace
from millrace.engine.program import kit, signing
from millrace.engine.program.signing import UnsignedError, signed, verified
from millrace.engine.task import exchange, faults
from millrace.engine.task.context import UnavailableError
from millrace.engine.task.exchange import EnvelopeError, Header, Parcel
from millrace.engine.task.faults import TaskError, find_error
from millrace.engine.task.worker import FirstPass, decode_pieces, decode_reports, load_job
from millrace.errors import EngineError, MillraceError, SinkError, SourceError
from millrace.protocol.types import AttemptId, TaskId
from millrace.sinks.base import SinkUnavailableError
from millrace.state.errors import NotOwnerError, OutOfMemoryError, UnreachableError

ATTEMPT = AttemptId(1, 2, 3)
TAG = "0" * 64


class Bomb:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.fixture
def mine(tmp_path):
    """A file that exists once a bomb went off."""
    file = tmp_path / "executed"
    yield file
    assert not file.exists()


def markers(mine: Path) -> list[str]:
    """Texts that look like an error of a task, one of which would run code."""
    bomb = base64.b64encode(pickle.dumps(Bomb(mine))).decode()
    believable = json.dumps(
        {
            "attempt": [1, 2, 3],
            "class": "SourceError",
            "message": "forged",
            "retryable": True,
        }
    )
    plain = base64.b64encode(believable.encode()).decode()
    other = str(TaskError(SourceError("of another time"), AttemptId(1, 2, 2)))
    wrong = "ab" * 32
    return [
        f"MILLRACE-ERROR[{bomb}]",
        f"MILLRACE-ERROR[{bomb}.{TAG}]",
        f"MILLRACE-ERROR[{plain}]",
        f"MILLRACE-ERROR[{plain}.{TAG}]",
        f"MILLRACE-ERROR[{plain}.{wrong}]",
        "MILLRACE-ERROR[a.b",
        f"MILLRACE-ERROR[a.{TAG}]",
        "MILLRACE-ERROR[" * 1000,
        other,
    ]


def test_a_bomb_goes_off_where_it_is_unpickled(tmp_path):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "executed"))).close()
    assert (tmp_path / "executed").exists()


def test_forged_markers_are_text(mine):
    forged = "\n".join(markers(mine))
    assert find_error(f"ValueError: {forged}", ATTEMPT) is None
    genuine = TaskError(SourceError(f"file {forged} shrank"), ATTEMPT)
    error = find_error(f"{forged}\n{genuine}\n{forged}", ATTEMPT)
    assert type(error) is SourceError
    assert str(error) == f"file {forged} shrank"


def test_a_file_whose_name_is_a_marker_runs_nothing(windows, tmp_path, mine):
    class Short:
        def __reduce__(self):
            return open, ("executed", "w")  # a whole path would be too long for a name

    name = base64.b64encode(pickle.dumps(Short())).decode()
    assert "/" not in name
    write_lines(tmp_path, ["a", "b"], f"MILLRACE-ERROR[{name}].txt")
    run = windows(
        """
sources: [{name: lines, files: {path: texts}}]
sinks: [{name: rows, inputs: [{from: lines}], files: {path: rows, format: jsonLines}}]
"""
    )
    intent = run.plan()
    write_lines(tmp_path, [], f"MILLRACE-ERROR[{name}].txt")
    with pytest.raises(TaskError) as caught:
        run.attempt(intent)
    error = run.error_in(caught.value)
    assert type(error) is SourceError
    assert name in str(error)
    assert not Path("executed").exists()


class AwayError(SinkUnavailableError):
    """As a connector of a user's own may raise."""


class StubbornError(SinkError):
    retryable = True


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (AwayError("away"), SinkUnavailableError, True),
        (StubbornError("full"), SinkError, True),
        (UnavailableError("no service"), UnavailableError, True),
        (EnvelopeError("damaged \ud800 \x1b[31m"), EnvelopeError, False),
        (type("Own", (MillraceError,), {})("own"), MillraceError, False),
    ],
)
def test_an_error_comes_as_the_nearest_class_of_the_table(error, kind, retryable):
    found = find_error(str(TaskError(error, ATTEMPT)), ATTEMPT)
    assert type(found) is kind
    assert str(found) == str(error)
    assert bool(getattr(found, "retryable", False)) is retryable
    assert getattr(kind, "retryable", False) is getattr(type(found), "retryable", False)


def test_the_state_server_that_an_error_is_about_arrives_with_it():
    for kind in (OutOfMemoryError, UnreachableError):
        error = kind("no")
        error.server = "state-1"
        found = find_error(str(TaskError(error, ATTEMPT)), ATTEMPT)
        assert (type(found), found.server) == (kind, "state-1")


def test_every_class_of_the_table_arrives_as_itself():
    for name, kind in faults._CLASSES.items():
        error = kind.__new__(kind)
        error.args = (f"an error of class {name}",)
        found = find_error(str(TaskError(error, ATTEMPT)), ATTEMPT)
        assert type(found) is kind
        assert str(found) == str(error)


def classes_below(kind):
    return {kind}.union(*(classes_below(below) for below in kind.__subclasses__()))


def test_the_table_knows_every_error_that_a_task_may_raise():
    tasks = ("engine", "state", "sources", "sinks", "tracking", "errors")
    places = tuple(f"millrace.{part}" for part in tasks)
    for module in pkgutil.walk_packages(millrace.__path__, "millrace."):
        if module.name.startswith(places):
            importlib.import_module(module.name)
    ours = {k for k in classes_below(MillraceError) if k.__module__.startswith(places)}
    # Of the driver: at its start, and of its own threads, which no task runs.
    elsewhere = {"SparkStartError", "JavaError", "ClassArchiveError", "DamagedLettersError"}
    elsewhere |= {"GivenUpError", "SilentMemberError", "LostObjectError", "SnapshotError"}
    elsewhere |= {"StateLostError", "SnapshotsAwayError"}  # of the supervisor
    elsewhere |= {"KeyTextError"}  # of the command line
    # Of a connection, which ends a task between two attempts or after one.
    elsewhere |= {"LinkError", "NotResidentError", "BesideError"}
    assert NotOwnerError in ours
    assert {k.__name__ for k in ours} - elsewhere <= set(faults._CLASSES)


def test_an_error_of_another_run_is_text(monkeypatch):
    text = str(TaskError(SourceError("of another run"), ATTEMPT))
    monkeypatch.setattr(signing, "_secret", secrets.token_bytes(32))
    assert find_error(text, ATTEMPT) is None


def test_what_was_not_signed_blames_the_engine_and_no_root():
    """As a damaged envelope does: the window runs again, and a new driver has a new kit."""
    error = find_error(str(TaskError(UnsignedError("a kit"), ATTEMPT)), ATTEMPT)
    assert isinstance(error, EngineError)


def test_what_is_signed_for_one_purpose_is_nothing_for_another():
    data = signed("report", [1])
    assert verified("report", data) == [1]
    with pytest.raises(UnsignedError, match="should be a job"):
        verified("job", data)


def forged(mine: Path) -> list[bytes]:
    bomb = pickle.dumps(Bomb(mine))
    return [b"", bomb, bytes(32) + bomb, signing.tag_of("other", bomb) + bomb, signed("other", 1)]


def load_kit(data: bytes):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kit").write_bytes(data)
        return kit.load(Path(folder) / "kit")


@pytest.mark.parametrize("read", [load_job, decode_pieces, decode_reports, load_kit])
def test_what_the_run_did_not_sign_is_not_looked_at(read, mine):
    for data in forged(mine):
        with pytest.raises(UnsignedError):
            read(data)


def test_a_share_that_was_not_signed_ends_its_task(mine):
    for data in forged(mine):
        with pytest.raises(UnsignedError):
            list(FirstPass(data)(0, []))


def test_an_envelope_whose_header_was_not_signed_is_refused(mine):
    whole = exchange.pack(Parcel(Header(TaskId(0, 0, 7), 0, {}), {}))
    assert exchange.unpack(whole).header.task == TaskId(0, 0, 7)
    for header in forged(mine):
        prefix = exchange._PREFIX.pack(b"MRENV\0", 1, len(header))
        with pytest.raises(EnvelopeError, match="not signed"):
            exchange.unpack(prefix + header)


def test_any_byte_of_a_signed_value_that_changes_is_noticed():
    data = signed("report", ["something"])
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(UnsignedError):
            verified("report", changed)


DANGEROUS = {"pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle"}
CALLS = {"eval", "exec"}


def test_one_module_alone_unpickles_and_none_evaluates():
    package = Path(millrace.__file__).parent
    found = set()
    for file in package.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.partition(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").partition(".")[0]]
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                names = [node.func.id] if node.func.id in CALLS else []
            if DANGEROUS.union(CALLS).intersection(names):
                found.add(str(file.relative_to(package)))
    assert found == {"engine/program/signing.py"}
