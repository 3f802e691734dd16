"""Whose folder it is, formats, and disks that are full or cannot be written."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.errors import NewerFormatError, SinkError
from millrace.modes import UMASK_VARIABLE
from millrace.protocol.types import Sealed
from millrace.sinks.base import RowsRefusedError
from millrace.sinks.files import FileSink

ROWS = pa.record_batch({"word": ["a", 'say "hi",\n', "", None], "n": [1, None, 3, 4]})


def make(folder: Path, **options: str) -> FileSink:
    return FileSink("out", {"path": "out", **options}, folder)


def fill(sink: FileSink, window: int = 1) -> Sealed:
    sink.fence(1)
    staged = sink.stage(f"1.{window}.0.0.0.0/out/out", [ROWS])
    assert staged is not None
    sealed = Sealed(window, staged.digest, (staged,))
    sink.publish(sealed, sealed.staged, 1)
    return sealed


def parts(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("part-*"))


class TestModes:
    """A run's processes have the umask 077; what they make for the user has the user's."""

    @pytest.mark.parametrize(
        ("umask", "file", "folder"), [("22", 0o644, 0o755), ("7", 0o660, 0o770)]
    )
    def test_outputs_follow_the_umask_of_the_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: str, file: int, folder: int
    ) -> None:
        monkeypatch.setenv(UMASK_VARIABLE, umask)
        before = os.umask(0o077)
        try:
            sink = make(tmp_path, path="new/out")
            sink.prepare("one")
            fill(sink)
        finally:
            os.umask(before)
        modes = [p.stat().st_mode & 0o777 for p in (tmp_path / "new", tmp_path / "new" / "out")]
        assert modes == [folder, folder]
        (part,) = sorted((tmp_path / "new" / "out").glob("part-*"))
        assert part.stat().st_mode & 0o777 == file
        assert (tmp_path / "new" / "out" / "_millrace").stat().st_mode & 0o077 == 0


class TestPrepare:
    def test_an_empty_or_missing_folder_is_taken(self, tmp_path: Path) -> None:
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / ".keep").touch()
        make(tmp_path, path="deep").prepare("one")
        make(tmp_path, path="not/there/yet").prepare("one")
        assert (tmp_path / "not/there/yet/_millrace/owner.json").exists()

    @pytest.mark.parametrize("fresh", [False, True])
    def test_the_same_life_goes_on_whatever_is_asked(self, tmp_path: Path, fresh: bool) -> None:
        # A driver that is started again in a fresh run is asked for the same things again.
        sink = make(tmp_path)
        sink.prepare("one", fresh=fresh, overwrite=fresh)
        fill(sink)
        make(tmp_path).prepare("one", fresh=fresh, overwrite=fresh)
        assert len(parts(tmp_path)) == 1

    def test_a_folder_with_files_of_others_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine.txt").touch()
        for fresh in (False, True):
            with pytest.raises(SinkError, match=r"did not write there, such as 'mine\.txt'; name"):
                make(tmp_path).prepare("one", fresh, overwrite=fresh)
        assert (tmp_path / "out" / "mine.txt").exists()

    @pytest.mark.parametrize(("fresh", "overwrite"), [(False, False), (True, False), (False, True)])
    def test_another_life_is_refused_without_both_switches(
        self, tmp_path: Path, fresh: bool, overwrite: bool
    ) -> None:
        sink = make(tmp_path)
        sink.prepare("one")
        fill(sink)
        with pytest.raises(
            SinkError, match=r"holds 1 files of another topology.*--fresh --overwrite"
        ):
            make(tmp_path).prepare("two", fresh, overwrite)
        assert len(parts(tmp_path)) == 1

    def test_overwrite_clears_what_millrace_wrote_and_windows_start_over(
        self, tmp_path: Path
    ) -> None:
        sink = make(tmp_path)
        sink.prepare("one")
        fill(sink, window=5)
        fill(sink, window=6)
        sink.fence(9)
        (tmp_path / "out" / "_other").touch()
        again = make(tmp_path)
        again.prepare("two", fresh=True, overwrite=True)
        assert parts(tmp_path) == []
        assert (tmp_path / "out" / "_other").exists()
        fill(again, window=1)
        assert len(parts(tmp_path)) == 1
        with pytest.raises(SinkError, match="belongs to another topology now"):
            sink.publish(Sealed(7, "", ()), (), 9)

    def test_overwrite_keeps_files_of_others(self, tmp_path: Path) -> None:
        sink = make(tmp_path)
        sink.prepare("one")
        fill(sink)
        (tmp_path / "out" / "mine.txt").touch()
        with pytest.raises(SinkError, match=r"mine\.txt"):
            make(tmp_path).prepare("two", fresh=True, overwrite=True)
        assert len(parts(tmp_path)) == 1

    def test_an_empty_folder_of_another_life_is_taken_over_by_fresh(self, tmp_path: Path) -> None:
        make(tmp_path).prepare("one")
        with pytest.raises(SinkError, match="holds marks of another topology"):
            make(tmp_path).prepare("two")
        make(tmp_path).prepare("two", fresh=True)
        with pytest.raises(SinkError):
            make(tmp_path).prepare("one")

    def test_a_fresh_start_is_refused_beforehand_and_nothing_changes(self, tmp_path: Path) -> None:
        make(tmp_path).check_fresh(overwrite=False)
        assert not (tmp_path / "out").exists()
        sink = make(tmp_path)
        sink.prepare("one")
        sink.check_fresh(overwrite=False)
        fill(sink)
        make(tmp_path).check_fresh(overwrite=True)
        with pytest.raises(SinkError, match="holds 1 files of another topology"):
            make(tmp_path).check_fresh(overwrite=False)
        (tmp_path / "out" / "mine.txt").touch()
        with pytest.raises(SinkError, match=r"mine\.txt"):
            make(tmp_path).check_fresh(overwrite=True)
        assert len(parts(tmp_path)) == 1
        make(tmp_path).prepare("one")

    def test_two_sinks_in_one_folder_are_refused(self, tmp_path: Path) -> None:
        make(tmp_path).prepare("one")
        with pytest.raises(SinkError, match="belongs to the sink 'out'; give each sink a folder"):
            FileSink("other", {"path": "out"}, tmp_path).prepare("one")

    def test_a_path_that_is_no_folder(self, tmp_path: Path) -> None:
        (tmp_path / "out").touch()
        with pytest.raises(SinkError, match="is no folder"):
            make(tmp_path).prepare("one")

    def test_marks_of_a_newer_release_and_damaged_ones(self, tmp_path: Path) -> None:
        make(tmp_path).prepare("one")
        owner = tmp_path / "out/_millrace/owner.json"
        owner.write_text(json.dumps({"format": 3, "uid": "one", "sink": "out"}))
        with pytest.raises(NewerFormatError, match="has format 3"):
            make(tmp_path).prepare("one")
        owner.write_text('{"form')
        with pytest.raises(SinkError, match=r"owner\.json cannot be read"):
            make(tmp_path).prepare("one")

    def test_an_unknown_format(self, tmp_path: Path) -> None:
        with pytest.raises(SinkError, match=r"files\.format 'xml' is not known; use jsonLines"):
            make(tmp_path, format="xml")

    def test_a_folder_that_vanishes(self, tmp_path: Path) -> None:
        sink = make(tmp_path)
        sink.prepare("one")
        (tmp_path / "out").rename(tmp_path / "away")
        with pytest.raises(SinkError, match="is gone while staging rows"):
            sink.stage("1.1.0.0.0.0/out/out", [ROWS])


class TestFormats:
    def show(self, folder: Path, kind: str) -> Path:
        sink = make(folder, format=kind)
        sink.prepare("one")
        fill(sink)
        (path,) = parts(folder)
        return path

    def test_json_lines(self, tmp_path: Path) -> None:
        path = self.show(tmp_path, "jsonLines")
        assert path.name == "part-000000000001-00000.jsonl"
        assert [json.loads(line) for line in path.read_text().splitlines()] == ROWS.to_pylist()

    def test_csv(self, tmp_path: Path) -> None:
        path = self.show(tmp_path, "csv")
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
        assert rows == [["word", "n"], ["a", "1"], ['say "hi",\n', ""], ["", "3"], ["", "4"]]
        assert path.read_text().splitlines()[-2:] == ['"",3', ",4"]

    def test_parquet(self, tmp_path: Path) -> None:
        path = self.show(tmp_path, "parquet")
        assert pq.read_table(path).to_pylist() == ROWS.to_pylist()


DISK = """
import os, resource, subprocess, sys
from pathlib import Path
import pyarrow as pa
from millrace.protocol.types import Sealed
from millrace.sinks.base import SinkFullError
from millrace.sinks.base import RowsRefusedError
from millrace.sinks.files import FileSink

folder, mode = Path(sys.argv[1]), sys.argv[2]
if mode == "tmpfs":
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], check=True)


def fill():
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (16, resource.RLIM_INFINITY))
        return
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass


def free():
    if mode == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        (folder / "filler").unlink()


def refused(work):
    try:
        work()
    except SinkFullError as error:
        assert error.retryable and str(folder / "out") in str(error), error
        assert "no space is left" in str(error) and "free some" in str(error), error
        return
    raise AssertionError("not refused")


rows = [pa.record_batch({"n": list(range(3000))})]
name = "1.1.0.0.0.0/out/out"
sink = FileSink("out", {"path": "out"}, folder)
sink.prepare("life")
sink.fence(1)
fill()
refused(lambda: sink.stage(name, rows))
assert not os.listdir(folder / "out/_millrace/staged")
free()
staged = sink.stage(name, rows)
sealed = Sealed(1, staged.digest, (staged,))
fill()
refused(lambda: sink.publish(sealed, [staged], 1))
assert [n for n in os.listdir(folder / "out") if n[0] != "_"] == []
assert not os.listdir(folder / "out/_millrace/windows")
free()
sink.publish(sealed, [staged], 1)
(part,) = [n for n in os.listdir(folder / "out") if n[0] != "_"]
assert (folder / "out" / part).read_text() == "".join(f'{{"n":{n}}}\\n' for n in range(3000))
print("shown")
"""


def test_a_file_that_may_not_grow_is_a_full_disk(tmp_path: Path) -> None:
    done = run_disk([sys.executable, "-c", DISK, str(tmp_path), "limit"])
    assert done.stdout == "shown\n", done.stderr


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """A real small file system where this user may mount one in a namespace of its own."""
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    mode = "tmpfs" if may_mount([*own, "mount", "-t", "tmpfs", "tmpfs", "/mnt"]) else "limit"
    command = [sys.executable, "-c", DISK, str(tmp_path), mode]
    done = run_disk([*own, *command] if mode == "tmpfs" else command)
    assert done.stdout == "shown\n", done.stderr


def test_a_folder_that_cannot_be_written_is_named() -> None:
    # The super-user may write anywhere, so the child goes on as nobody; it has imported before.
    code = (
        "import os, sys; from pathlib import Path\n"
        "from millrace.sinks.files import FileSink\n"
        "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try: FileSink('out', {'path': 'out'}, Path(sys.argv[1])).prepare('life')\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        done = run_disk([sys.executable, "-c", code, folder])
        Path(folder).chmod(0o755)
    assert done.stdout.startswith(f"SinkError sink 'out': folder {folder}/out"), done
    assert "Permission denied" in done.stdout
    assert "make it writable" in done.stdout


def run_disk(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def may_mount(command: list[str]) -> bool:
    try:
        return run_disk(command).returncode == 0
    except FileNotFoundError:
        return False


def test_a_fresh_start_is_refused_before_anything_is_deleted(tmp_path):
    sink = FileSink("out", {"path": "out", "format": "jsonLines"}, tmp_path)
    sink.prepare("one")
    shown = tmp_path / "out" / "part-000000000001-00000.jsonl"
    shown.write_text("{}\n")
    again = FileSink("out", {"path": "out", "format": "jsonLines"}, tmp_path)
    with pytest.raises(SinkError, match="--overwrite"):
        again.check_fresh(overwrite=False)
    again.check_fresh(overwrite=True)
    assert shown.exists()


class TestRowsThatDoNotFit:
    FAR = pa.array([[1], [2**62], [2]], pa.list_(pa.timestamp("us")))

    def test_they_are_named_by_their_place_and_nothing_is_left_of_them(
        self, tmp_path: Path
    ) -> None:
        sink = make(tmp_path)
        sink.prepare("one")
        batches = [pa.record_batch({"t": self.FAR}), pa.record_batch({"t": self.FAR[::-1]})]
        with pytest.raises(RowsRefusedError, match="written as jsonLines") as caught:
            sink.stage("1.1.0.0.0.0/out/out", batches)
        assert caught.value.rows.keys() == {1, 4}
        assert list((tmp_path / "out" / "_millrace").rglob("*.jsonl")) == []
        good = [pa.record_batch({"t": self.FAR[:1]})]
        staged = sink.stage("1.1.0.0.0.0/out/out", good)
        assert staged is not None
        assert staged.rows == 1

    def test_a_type_that_a_format_does_not_know_is_no_fault_of_rows(self, tmp_path: Path) -> None:
        sink = make(tmp_path, format="parquet")
        sink.prepare("one")
        spans = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())
        with pytest.raises(SinkError, match=r"as parquet.*other column") as caught:
            sink.stage("1.1.0.0.0.0/out/out", [pa.record_batch({"span": spans})])
        assert not isinstance(caught.value, RowsRefusedError)
