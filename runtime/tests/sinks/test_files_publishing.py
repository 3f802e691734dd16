"""Whatever is killed, raced or woken up, a folder shows each row of a sealed window once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from millrace.errors import FencedError, SinkError
from millrace.protocol.types import Sealed, Staged
from millrace.sinks.files import FileSink
from millrace.sinks.markers import Markers

STEPS = ["manifest", "rename:0", "rename:1", "rename:2", "renamed", "done"]


class Killed(BaseException):
    """Stands for the end of the process."""


def die_at(wanted: str) -> Callable[[str], None]:
    def step(name: str) -> None:
        if name == wanted:
            raise Killed

    return step


def batch(words: Sequence[str]) -> pa.RecordBatch:
    return pa.record_batch({"word": list(words), "n": list(range(len(words)))})


def make(folder: Path, execution: int = 1, uid: str = "life") -> FileSink:
    """The sink as a starting driver has it."""
    sink = FileSink("out", {"path": "out"}, folder)
    sink.prepare(uid)
    sink.fence(execution)
    return sink


def stage(sink: FileSink, window: int, *parts: Sequence[str], attempt: int = 0) -> Sealed:
    """A sealed window whose tasks staged these words."""
    staged = [
        sink.stage(f"1.{window}.{attempt}.0.{number}.0/out/out", [batch(words)])
        for number, words in enumerate(parts)
    ]
    mine = tuple(s for s in staged if s is not None)
    return Sealed(window, "+".join(s.digest for s in mine), mine)


def shown(folder: Path) -> Counter[str]:
    """What a plain reader sees that skips names beginning with ``_`` or ``.``."""
    rows: Counter[str] = Counter()
    for path in (folder / "out").iterdir():
        if path.name[0] not in "_.":
            rows.update(json.loads(line)["word"] for line in path.read_text().splitlines())
    return rows


def once(*words: str) -> Counter[str]:
    return Counter(dict.fromkeys(words, 1))


@pytest.mark.parametrize("point", STEPS)
def test_publishing_again_after_a_death_at_any_step_shows_each_row_once(
    tmp_path: Path, point: str
) -> None:
    sink = make(tmp_path)
    sealed = stage(sink, 7, ["a", "b"], ["c"], ["d", "e"])
    with pytest.raises(Killed):
        sink.publish(sealed, sealed.staged, 1, die_at(point))
    assert max(shown(tmp_path).values(), default=1) == 1
    for execution in (2, 3):
        sink = make(tmp_path, execution)
        sink.publish(sealed, sealed.staged, execution)
        assert shown(tmp_path) == once("a", "b", "c", "d", "e")
    assert not list((tmp_path / "out/_millrace/staged").iterdir())
    assert not [p for p in (tmp_path / "out/_millrace/windows").iterdir() if p.name[0] == "."]


PUBLISH = """
import sys
from pathlib import Path
from millrace.protocol.codec import encode
from millrace.protocol.types import Sealed, Staged
from millrace.sinks.files import FileSink
from millrace.sinks.markers import Markers
import pyarrow as pa

sink = FileSink("out", {"path": "out"}, Path(sys.argv[1]))
sink.prepare("life")
sink.fence(int(sys.argv[2]))
mine = []
for part in range(3):
    words = [f"{part}-{n}" for n in range(100)]
    name = f"1.7.0.0.{part}.0/out/out"
    mine.append(sink.stage(name, [pa.record_batch({"word": words})]))
    assert mine[-1] is not None
sink.publish(Sealed(7, "digest", tuple(mine)), mine, int(sys.argv[2]))
"""


@pytest.mark.parametrize(
    "point",
    ["publish.manifest", "publish.rename", "publish.rename:3", "publish.renamed", "publish.done"],
)
def test_sigkill_at_every_crash_point(tmp_path: Path, point: str) -> None:
    def run(execution: int, crash_at: str) -> int:
        environment = {**os.environ, "MILLRACE_CRASH_AT": crash_at}
        command = [sys.executable, "-c", PUBLISH, str(tmp_path), str(execution)]
        return subprocess.run(command, env=environment, check=False, timeout=120).returncode

    assert run(1, point) == -signal.SIGKILL
    assert max(shown(tmp_path).values(), default=1) == 1
    assert run(2, "") == 0
    assert shown(tmp_path) == once(*(f"{part}-{n}" for part in range(3) for n in range(100)))


def test_only_one_of_two_different_contents_of_a_window_is_ever_shown(tmp_path: Path) -> None:
    both = threading.Barrier(2)
    refusals: list[str] = []

    def publish(sink: FileSink, sealed: Sealed) -> bool:
        both.wait()
        try:
            sink.publish(sealed, sealed.staged, 1)
        except SinkError as error:
            refusals.append(str(error))
            return False
        return True

    sinks = [make(tmp_path), make(tmp_path)]
    with ThreadPoolExecutor(2) as threads:
        for window in range(40):
            sealed = [
                stage(sinks[i], window, [f"{window}{i}a"], [f"{window}{i}b"], attempt=i)
                for i in (0, 1)
            ]
            won = list(threads.map(publish, sinks, sealed))
            assert sorted(won) == [False, True]
            winner = won.index(True)
            rows = shown(tmp_path)
            assert {w: n for w, n in rows.items() if w.startswith(f"{window}{winner}")} == {
                f"{window}{winner}a": 1,
                f"{window}{winner}b": 1,
            }
            assert sum(rows.values()) == 2 * (window + 1)
    assert all("already shows window" in text for text in refusals)


def test_two_publishers_of_the_same_window_both_succeed(tmp_path: Path) -> None:
    sinks = [make(tmp_path), make(tmp_path)]
    both = threading.Barrier(2)

    def publish(sink: FileSink, sealed: Sealed) -> None:
        both.wait()
        sink.publish(sealed, sealed.staged, 1)

    with ThreadPoolExecutor(2) as threads:
        for window in range(40):
            sealed = stage(sinks[0], window, [f"{window}a"], [f"{window}b"])
            list(threads.map(publish, sinks, [sealed, sealed]))
            assert set(shown(tmp_path).values()) == {1}
            assert len(shown(tmp_path)) == 2 * (window + 1)


@pytest.mark.parametrize("point", STEPS)
def test_an_old_driver_that_wakes_up_much_later_changes_nothing(tmp_path: Path, point: str) -> None:
    old = make(tmp_path)
    sealed = stage(old, 1, ["a"], ["b"], ["c"])
    done: list[str] = []

    def sleep(name: str) -> None:
        if name == point:
            new = make(tmp_path, execution=2)
            new.publish(sealed, sealed.staged, 2)
            for window in range(2, 25):
                later = stage(new, window, [f"w{window}"])
                new.publish(later, later.staged, 2)
            done.append(name)

    # Where all was shown meanwhile it has nothing left to do; else it is told of the fence.
    told = nullcontext() if point in ("manifest", "done") else pytest.raises(FencedError)
    with told:
        old.publish(sealed, sealed.staged, 1, sleep)
    assert done == [point]
    expected = once("a", "b", "c", *(f"w{n}" for n in range(2, 25)))
    assert shown(tmp_path) == expected
    other = Sealed(24, "another", ())
    with pytest.raises(SinkError, match="already shows window 24 with the digest"):
        make(tmp_path, 3).publish(other, (), 3)
    with pytest.raises(FencedError, match="serves execution 3, this is execution 1"):
        old.publish(sealed, sealed.staged, 1)
    make(tmp_path, 3).publish(sealed, sealed.staged, 3)
    assert shown(tmp_path) == expected


def test_an_old_driver_does_not_miss_files_that_a_reader_took_away(tmp_path: Path) -> None:
    old = make(tmp_path)
    sealed = stage(old, 1, ["a"], ["b"])

    def sleep(name: str) -> None:
        if name == "manifest":
            make(tmp_path, execution=2).publish(sealed, sealed.staged, 2)
            for path in (tmp_path / "out").glob("part-*"):
                path.unlink()

    old.publish(sealed, sealed.staged, 1, sleep)
    assert not shown(tmp_path)


def test_a_lower_execution_is_refused(tmp_path: Path) -> None:
    old, new = make(tmp_path, 4), make(tmp_path, 5)
    sealed = stage(old, 1, ["a"])
    with pytest.raises(FencedError, match="a newer run of the topology has taken over"):
        old.publish(sealed, sealed.staged, 4)
    with pytest.raises(FencedError):
        old.fence(4)
    assert not shown(tmp_path)
    new.publish(sealed, sealed.staged, 5)
    new.fence(5)
    assert shown(tmp_path) == once("a")


def test_who_is_overtaken_while_it_writes_a_mark_is_told_of_the_fence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who takes over sweeps the drafts of marks away, that of a driver that lives among them."""
    old = make(tmp_path, 1)
    window = stage(old, 1, ["a"])
    link = os.link

    def overtaken(*paths: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        make(tmp_path, 2)
        link(*paths)

    monkeypatch.setattr(os, "link", overtaken)
    with pytest.raises(FencedError, match="serves execution 2"):
        old.publish(window, window.staged, 1)
    new = make(tmp_path, 3)
    new.publish(window, window.staged, 3)
    assert shown(tmp_path) == Counter(["a"])


def test_who_fences_late_sweeps_nothing_of_those_that_came_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped between its fence and the sweep; meanwhile the next driver writes a mark."""
    sink = FileSink("out", {"path": "out"}, tmp_path)
    sink.prepare("life")
    sweep = Markers.sweep
    link = os.link
    drafts: list[bool] = []

    def late(markers: Markers, before: Collection[Path], execution: int) -> None:
        monkeypatch.setattr(Markers, "sweep", sweep)
        new = make(tmp_path, 2)
        window = stage(new, 1, ["a"])

        def swept(draft: Path, path: Path) -> None:
            sweep(markers, before, execution)
            drafts.append(Path(draft).exists())
            link(draft, path)

        monkeypatch.setattr(os, "link", swept)
        new.publish(window, window.staged, 2)

    monkeypatch.setattr(Markers, "sweep", late)
    sink.fence(1)
    assert drafts == [True, True]
    assert shown(tmp_path) == Counter(["a"])


def test_another_digest_of_a_window_that_is_half_shown_is_refused(tmp_path: Path) -> None:
    sink = make(tmp_path)
    first, second = stage(sink, 1, ["a"], ["b"]), stage(sink, 1, ["x"], ["y"], attempt=1)
    with pytest.raises(Killed):
        sink.publish(first, first.staged, 1, die_at("rename:0"))
    with pytest.raises(SinkError, match=r"already shows window 1 with the digest .* nothing was"):
        sink.publish(second, second.staged, 1)
    sink.publish(first, first.staged, 1)
    assert shown(tmp_path) == once("a", "b")


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def altered(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [truncated, altered, Path.unlink])
def test_a_damaged_staged_file_stops_the_window_before_anything_shows(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    sink = make(tmp_path)
    sealed = stage(sink, 1, ["a"], ["b", "c"])
    sink.verify(sealed.staged)
    damage(sorted((tmp_path / "out/_millrace/staged").iterdir())[1])
    with pytest.raises(
        SinkError, match=r"staged output 1\.1\.0\.0\.1\.0/out/out (is gone|has \d+)"
    ):
        sink.verify(sealed.staged)
    with pytest.raises(SinkError, match="nothing of the window is shown"):
        sink.publish(sealed, sealed.staged, 1)
    assert not shown(tmp_path)
    assert not list((tmp_path / "out/_millrace/windows").iterdir())


def test_a_foreign_file_under_a_final_name_is_kept(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sealed = stage(sink, 1, ["a"])
    target = tmp_path / "out/part-000000000001-00000.jsonl"
    target.write_text('{"word":"mine"}\n')
    with pytest.raises(SinkError, match="has other content than the window"):
        sink.publish(sealed, sealed.staged, 1)
    assert shown(tmp_path) == once("mine")
    target.unlink()
    sink.publish(sealed, sealed.staged, 1)
    assert shown(tmp_path) == once("a")


def test_marks_of_old_windows_are_compacted_and_still_refuse(tmp_path: Path) -> None:
    sink = make(tmp_path)
    all_sealed = [stage(sink, window, [f"w{window}"]) for window in range(40)]
    for sealed in all_sealed:
        sink.publish(sealed, sealed.staged, 1)
    assert len(list((tmp_path / "out/_millrace/windows").iterdir())) <= 2 * 17
    for path in (tmp_path / "out").glob("part-*"):
        path.unlink()
    for sealed in all_sealed:
        make(tmp_path).publish(sealed, sealed.staged, 1)
    assert not shown(tmp_path), "a window that was shown is shown again"


def test_a_window_behind_the_shown_ones_that_was_never_shown_is_an_error(tmp_path: Path) -> None:
    sink = make(tmp_path)
    skipped, sealed = stage(sink, 1, ["a"]), stage(sink, 2, ["b"])
    sink.publish(sealed, sealed.staged, 1)
    with pytest.raises(SinkError, match="never showed 1 itself"):
        sink.publish(skipped, skipped.staged, 1)


def test_a_window_without_rows_is_marked_too(tmp_path: Path) -> None:
    sink = make(tmp_path)
    assert sink.stage("1.1.0.0.0.0/out/out", [batch([])]) is None
    assert sink.stage("1.1.0.0.0.0/out/out", []) is None
    sink.publish(Sealed(1, "nothing", ()), (), 1)
    sealed = stage(sink, 1, ["late"])
    with pytest.raises(SinkError, match="already shows window 1"):
        sink.publish(sealed, sealed.staged, 1)


def test_discard_drops_what_is_covered_and_nothing_else(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sealed = [stage(sink, window, [f"w{window}"]) for window in (1, 2, 3)]
    asked: list[str] = []

    def covers(name: str) -> bool:
        asked.append(name)
        return name.split(".")[1] == "2"

    sink.discard(covers)
    assert sorted(asked) == [f"1.{w}.0.0.0.0/out/out" for w in (1, 2, 3)]
    sink.verify([*sealed[0].staged, *sealed[2].staged])
    with pytest.raises(SinkError):
        sink.verify(sealed[1].staged)


def test_staging_a_name_again_replaces_what_a_dead_worker_left(tmp_path: Path) -> None:
    sink = make(tmp_path)
    stage(sink, 1, ["a" * 1000])
    sealed = stage(sink, 1, ["b"])
    sink.publish(sealed, sealed.staged, 1)
    assert shown(tmp_path) == once("b")


def test_the_digest_is_that_of_the_bytes(tmp_path: Path) -> None:
    sink = make(tmp_path)
    first, same, other = (
        stage(sink, w, words).staged for w, words in enumerate(["ab", "ab", "ac"])
    )
    assert first[0].digest == same[0].digest != other[0].digest
    assert (first[0].rows, first[0].size_bytes) == (2, len('{"word":"a","n":0}\n') * 2)


def test_manifests_name_what_is_shown(tmp_path: Path) -> None:
    sink = make(tmp_path)
    sealed = stage(sink, 3, ["a"], ["b", "c"])
    sink.publish(sealed, sealed.staged, 1)
    manifest = json.loads((tmp_path / "out/_millrace/windows/000000000003.json").read_text())
    assert (manifest["uid"], manifest["window"], manifest["digest"]) == ("life", 3, sealed.digest)
    for entry, staged in zip(manifest["files"], sealed.staged, strict=True):
        assert isinstance(staged, Staged)
        assert (entry["digest"], entry["rows"]) == (staged.digest, staged.rows)
        assert (tmp_path / "out" / entry["name"]).exists()


@pytest.mark.parametrize("point", [None, *STEPS])
def test_the_last_window_of_which_anything_is_shown_is_told(
    tmp_path: Path, point: str | None
) -> None:
    sink = make(tmp_path)
    assert sink.last_shown() is None
    first = stage(sink, 6, ["x"])
    sink.publish(first, first.staged, 1)
    second = stage(sink, 7, ["a", "b"], ["c"], ["d", "e"])
    assert sink.last_shown() == (6, first.digest)
    if point is None:
        sink.publish(second, second.staged, 1)
    else:
        with pytest.raises(Killed):
            sink.publish(second, second.staged, 1, die_at(point))
    assert make(tmp_path, 2).last_shown() == (7, second.digest)


@pytest.mark.parametrize("back_to", [0, 3, 27])
def test_windows_that_are_taken_back_are_shown_again_with_other_content(
    tmp_path: Path, back_to: int
) -> None:
    """Also those so far back that their marks are compacted; the windows up to there stay."""
    sink = make(tmp_path)
    for window in range(1, 31):
        sealed = stage(sink, window, [f"w{window}a"], [f"w{window}b"])
        sink.publish(sealed, sealed.staged, 1)
    half = stage(sink, 31, ["half"], ["shown"])
    with pytest.raises(Killed):
        sink.publish(half, half.staged, 1, die_at("rename:0"))
    sink = make(tmp_path, 2)
    for _ in range(2):
        sink.retract(back_to)
        kept = [f"w{n}{part}" for n in range(1, back_to + 1) for part in "ab"]
        assert shown(tmp_path) == once(*kept)
        assert sink.last_shown() is not None
        assert sink.last_shown()[0] == back_to  # type: ignore[index]
    again = stage(sink, back_to + 1, ["other"], attempt=9)
    sink.publish(again, again.staged, 2)
    assert shown(tmp_path) == once(*kept, "other")
    # The fence holds: who showed those windows cannot do so again.
    with pytest.raises(FencedError):
        sink.publish(half, half.staged, 1)
    assert shown(tmp_path) == once(*kept, "other")


@pytest.mark.parametrize("point", ["manifest", "rename:0", "renamed"])
def test_who_wakes_up_behind_a_restore_hides_no_window_of_the_new_timeline(
    tmp_path: Path, point: str
) -> None:
    """A mark of its window would say that all up to that are shown."""
    old = make(tmp_path, 1)
    for window in range(1, 40):
        sealed = stage(old, window, [f"old{window}"])
        old.publish(sealed, sealed.staged, 1)
    late = stage(old, 40, ["old40"])

    def show(sink: FileSink, window: int) -> None:
        sealed = stage(sink, window, [f"new{window}"], attempt=9)
        sink.publish(sealed, sealed.staged, 2)

    def sleep(name: str) -> None:
        if name == point:
            new = make(tmp_path, 2)
            new.retract(10)
            show(new, 11)

    with pytest.raises(FencedError, match="serves execution 2"):
        old.publish(late, late.staged, 1, sleep)
    new = make(tmp_path, 2)
    for window in range(12, 41):
        show(new, window)
    kept = [f"old{n}" for n in range(1, 11)]
    assert shown(tmp_path) == once(*kept, *(f"new{n}" for n in range(11, 41)))


@pytest.mark.parametrize("looks", range(1, 6))
@pytest.mark.parametrize("parts", [1, 3])
def test_no_file_of_a_window_that_was_taken_back_comes_up_beside_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int, parts: int
) -> None:
    """Whoever is overtaken between a look at the fence and what it does then, does it no more."""
    old = make(tmp_path, 1)
    first = stage(old, 1, ["kept"])
    old.publish(first, first.staged, 1)
    late = stage(old, 2, *[[f"old{n}"] for n in range(parts)])
    real, left = Markers.check_fence, [looks]

    def overtaken(markers: Markers, execution: int) -> None:
        real(markers, execution)
        if execution != 1:
            return
        left[0] -= 1
        if left[0] == 0:
            new = make(tmp_path, 2)
            new.retract(1)
            again = stage(new, 2, ["new"], attempt=9)
            new.publish(again, again.staged, 2)

    monkeypatch.setattr(Markers, "check_fence", overtaken)
    stopped = pytest.raises(FencedError, match="serves execution 2")
    with stopped if left[0] <= parts + 2 else nullcontext():
        old.publish(late, late.staged, 1)
    monkeypatch.undo()
    old_words = [f"old{n}" for n in range(parts)]
    assert shown(tmp_path) == once("kept", *(old_words if left[0] > 0 else ["new"]))


def test_no_manifest_of_an_older_driver_comes_up_behind_a_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even while it reads what it is to show, which may take long."""
    old = make(tmp_path, 1)
    late = stage(old, 1, ["old1"], ["old2"])
    real = os.link

    def link(source: Path, target: Path) -> None:
        if Path(target).name.endswith("1.json"):
            make(tmp_path, 2).retract(0)
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(FencedError, match="serves execution 2"):
        old.publish(late, late.staged, 1)
    monkeypatch.undo()
    new = make(tmp_path, 2)
    assert new.last_shown() is None
    again = stage(new, 1, ["new"], attempt=9)
    new.publish(again, again.staged, 2)
    assert shown(tmp_path) == once("new")


def test_a_fence_takes_away_no_draft_of_a_later_execution(tmp_path: Path) -> None:
    sink = make(tmp_path, 1)
    windows = tmp_path / "out" / "_millrace" / "windows"
    real = Markers.check_fence

    drafts = {n: windows / f".000000000007.json.{n:012}.ab" for n in (1, 2, 3, 4)}

    def late(markers: Markers, execution: int) -> None:
        real(markers, execution)
        for draft in drafts.values():
            draft.touch()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Markers, "check_fence", late)
        sink.fence(3)
    assert [n for n, draft in drafts.items() if draft.exists()] == [3, 4]


def test_who_is_fenced_takes_nothing_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = make(tmp_path, 1)
    for window, word in enumerate("abc", 1):
        sealed = stage(old, window, [word])
        old.publish(sealed, sealed.staged, 1)
    new = make(tmp_path, 2)
    with pytest.raises(FencedError):
        old.retract(1)
    assert shown(tmp_path) == once("a", "b", "c")
    # Also while it is at that: then what is left stays, and what was shown meanwhile.
    real = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        real(path, missing_ok=missing_ok)
        if path.name.startswith("part-"):
            make(tmp_path, 3)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(FencedError):
        new.retract(1)
    assert len(shown(tmp_path)) == 2


def test_taking_back_more_than_is_shown_makes_no_mark(tmp_path: Path) -> None:
    sink = make(tmp_path, 1)
    sink.retract(3)
    assert sink.last_shown() is None
    one = stage(sink, 1, ["a"])
    sink.publish(one, one.staged, 1)
    sink.retract(3)
    shown_last = sink.last_shown()
    assert shown_last is not None
    assert shown_last[0] == 1
    two = stage(sink, 2, ["b"])
    sink.publish(two, two.staged, 1)
    assert shown(tmp_path) == once("a", "b")
