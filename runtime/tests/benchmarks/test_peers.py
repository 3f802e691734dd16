"""The parts of ``benchmarks/peers.py`` that decide what a figure is worth."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def importable() -> Iterator[None]:
    """Benchmarks import each other by name, as scripts of one folder do."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


class Counting:
    """A side that shows totals of what lies in its input, all in one file; ``wrong`` are added."""

    name = "counting"

    def __init__(self, folder: Path, wrong: dict[str, int] | None = None) -> None:
        self.output = folder / "output"
        self._input = folder / "input"
        self._input.mkdir(parents=True)
        self._wrong = wrong or {}

    def cpu_s(self) -> float:
        return 0.0

    def stop(self) -> None:
        pass

    def more(self) -> list[bytes]:
        totals = dict(self._wrong)
        for path in self._input.iterdir():
            for word in path.read_text().split():
                totals[word] = totals.get(word, 0) + 1
        return [b"".join(b'{"word":"%b","n":%d}\n' % (w.encode(), n) for w, n in totals.items())]


def runner(folder: Path, wrong: dict[str, int] | None = None) -> Any:
    from corpus import Corpus
    from peerrounds import Runner, Texts

    files = (folder / "one.txt", folder / "two.txt")
    files[0].write_text("a b a\nlast\n")
    files[1].write_text("b c\nd\nlast\n")
    side = Counting(folder / "side", wrong)
    return Runner(side, Texts(Corpus("some", files, 2)), side)


def test_a_round_counts_its_words_and_takes_right_totals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("peerrounds.SETTLE_S", 0.0)
    running = runner(tmp_path)
    # Six words and a mark for each file; the last line of a file gives way to the mark.
    assert [running.round(number).words for number in range(3)] == [8, 8, 8]


@pytest.mark.parametrize("wrong", [{"a": 1}, {"never-fed": 2}])
def test_a_wrong_total_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, int]
) -> None:
    monkeypatch.setattr("peerrounds.SETTLE_S", 0.0)
    monkeypatch.setattr("peerrounds.LATE_S", 0.0)
    (word,) = wrong
    with pytest.raises(SystemExit, match=f"counting is wrong on 1 words.*{word}"):
        runner(tmp_path, wrong).round(0)


def test_a_total_that_is_missing_ends_the_run() -> None:
    from peerrounds import Ledger

    ledger = Ledger()
    ledger.feed({"a": 2, "b": 1})
    ledger.show(b'{"word":"a","n":1}\n{"word":"a","n":2}\n')
    assert ledger.different() == {"b": (1, None)}
    ledger.show(b'{"word":"b","n":1}\n')
    assert ledger.different() == {}
    ledger.feed({"a": 1})
    assert ledger.different() == {"a": (3, 2)}


def test_what_is_appended_is_read_once_and_in_whole_lines(tmp_path: Path) -> None:
    from peerrounds import Grown

    grown = Grown(tmp_path)
    file = tmp_path / "0.jsonl"
    file.write_bytes(b"one\ntw")
    assert list(grown.more()) == [b"one\n"]
    assert list(grown.more()) == []
    with file.open("ab") as out:
        out.write(b"o\nthree\n")
    assert list(grown.more()) == [b"two\nthree\n"]


def test_ratios_are_null_for_a_peer_that_is_missing() -> None:
    from peerrounds import Done
    from peers import ratios

    found = {
        "millrace": [Done(1.0, 2.0, 100), Done(2.0, 2.0, 100), Done(1.0, 1.0, 100)],
        "spark": [Done(3.0, 8.0, 100), Done(4.0, 10.0, 100), Done(4.0, 6.0, 100)],
    }
    told = ratios(found, ["millrace", "spark", "bytewax"], "_500k")
    assert told["vs_spark_500k"] == 3.0
    assert told["vs_spark_cpu_500k"] == 5.0
    assert told["vs_bytewax_500k"] is None
    assert told["bytewax_words_per_s_500k"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--rounds", "4"], "medians are of at least 5"),
        (["--windows", "0"], "--windows must be at least 1"),
        (["--checkpoint-ms", "0"], "--checkpoint-ms must be at least 1"),
        (["--arrivals", "1"], "--arrivals must be at least 2"),
        (["--sides", "storm"], "invalid choice: 'storm'"),
        (["--only", "all"], "invalid choice: 'all'"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: Sequence[str], said: str
) -> None:
    from peers import parsed

    with pytest.raises(SystemExit, match="2"):
        parsed(arguments)
    assert said in capsys.readouterr().err


def test_the_time_between_snapshots_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import peers

    made: list[tuple[str, int]] = []
    for side in ("FlinkSide", "BytewaxSide"):
        monkeypatch.setattr(peers, side, lambda name, *rest: made.append((name, rest[-1])))
    assert peers.parsed([]).checkpoint_ms == 100
    asked = peers.parsed(["--checkpoint-ms", "500"]).checkpoint_ms
    for makers in (peers.throughput_sides(asked), peers.arrival_sides(asked)):
        for name, make in makers.items():
            if name not in ("millrace", "spark"):
                make(tmp_path)
    assert {ms for name, ms in made if not name.endswith("_20ms")} == {500}
    assert {ms for name, ms in made if name.endswith("_20ms")} == {20}
    assert len(made) == 8


def test_no_window_is_left_out_of_the_times() -> None:
    from sides import SideError, all_times

    times = {3: 0.1, 4: 0.2, 5: 0.3, 6: 0.4}
    assert all_times(times, 4, 3) == [0.2, 0.3, 0.4]
    with pytest.raises(SideError, match=r"1 of 3 windows: \[7\]"):
        all_times(times, 5, 3)


def test_jars_that_are_not_those_of_the_list_are_refused(tmp_path: Path) -> None:
    from peerprograms import PeerMissingError, pinned, verify

    jars = tmp_path / "jars"
    jars.mkdir()
    (jars / "a.jar").write_bytes(b"one")
    pins = tmp_path / "jars.sha256"
    pins.write_text(f"{hashlib.sha256(b'one').hexdigest()}  a.jar\n")
    verify(jars, pinned(pins))
    (jars / "b.jar").write_bytes(b"not in the list")
    with pytest.raises(PeerMissingError, match=r"b\.jar"):
        verify(jars, pinned(pins))
    (jars / "b.jar").unlink()
    (jars / "a.jar").write_bytes(b"another")
    with pytest.raises(PeerMissingError, match=r"a\.jar"):
        verify(jars, pinned(pins))


def test_a_program_that_is_missing_is_told_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from peers import started
    from peersides import FlinkSide

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    missing: dict[str, str] = {}
    makers = {"flink_sql": lambda at: FlinkSide("flink_sql", "sql", at, 100)}
    assert list(started(makers, tmp_path, missing)) == []
    assert "apt install default-jre-headless" in missing["flink_sql"]
    assert "flink_sql is left out" in capsys.readouterr().out
    assert not (tmp_path / "flink_sql").exists()
