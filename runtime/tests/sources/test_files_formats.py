"""What each file format makes of its records; a bad record fails alone."""

from __future__ import annotations

import csv
import datetime as dt
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.errors import SourceError
from millrace.protocol.types import Replay
from millrace.sources import parquet
from millrace.sources.base import cut
from millrace.sources.csv_rows import CsvDecoder
from millrace.sources.files import FileSource
from millrace.sources.lines import find_lines

UTC = dt.UTC


def read_all(
    path: Path, limit: int = 1_000_000, parts: int = 1, **options: Any
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """All rows of one file and the messages of the bad ones, by row number."""
    source = FileSource("s", {"path": path.name, "watch": False, **options}, path.parent)
    rows: list[dict[str, Any]] = []
    errors: dict[int, str] = {}
    offsets = None
    while True:
        plan = source.plan(offsets, limit)
        for whole in plan.ranges:
            for piece in cut(source, whole, parts):
                before = len(rows)
                for batch in source.read(piece):
                    assert batch.data.schema == source.schema()
                    batch.data.validate(full=True)
                    errors |= {len(rows) + row: text for row, text in batch.errors}
                    rows += batch.data.to_pylist()
                assert len(rows) - before == piece.count
        offsets = plan.offsets
        if plan.drained:
            return rows, errors


class TestText:
    def test_invalid_utf8_fails_its_own_line_only(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_bytes(b"gut\n" + b"b\xffad\nna\xc3\n\xa9ive\n" + "größer\n".encode())
        rows, errors = read_all(path)
        assert [r["value"] for r in rows] == ["gut", None, None, None, "größer"]
        assert errors[1] == "the line is not valid UTF-8: invalid start byte at its byte 2"
        assert errors.keys() == {1, 2, 3}

    def test_the_payload_of_a_bad_line_is_its_bytes(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(b"one\nb\xffad\r\nthree\n")
        source = FileSource("s", {"path": "a.txt", "watch": False}, tmp_path)
        (piece,) = source.plan(None, 10).ranges
        replay = Replay("s", piece.partition, 1, 1, 0.0, source.locate(piece, 1))
        assert source.payload(replay) == b"b\xffad"

    def test_windows_line_ends_and_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "a.txt"
        path.write_bytes(b"\xef\xbb\xbfa\r\n\r\nb\rc\r\n\nd")
        rows, errors = read_all(path, limit=2)
        assert [r["value"] for r in rows] == ["a", "", "b\rc", "", "d"]
        assert not errors

    def test_an_empty_file_has_no_records(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").touch()
        assert read_all(tmp_path / "a.txt") == ([], {})


class TestJsonLines:
    SCHEMA = (
        "name string, n long, x double, ok boolean, at timestamp, day date, b binary, "
        "t array<string>"
    )

    def test_all_types(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_text(
            '{"name":"ä \\n","n":5,"x":1,"ok":true,"at":"2024-01-02T03:04:05.5+01:00",'
            '"day":"2024-01-02","b":"AAE=","t":["p",null],"other":{"k":1}}\n'
            '{"name":null}\n'
        )
        rows, errors = read_all(path, format="jsonLines", schema=self.SCHEMA)
        assert not errors
        assert rows[0] == {
            "name": "ä \n",
            "n": 5,
            "x": 1.0,
            "ok": True,
            "at": dt.datetime(2024, 1, 2, 2, 4, 5, 500000, tzinfo=UTC),
            "day": dt.date(2024, 1, 2),
            "b": b"\x00\x01",
            "t": ["p", None],
        }
        assert set(rows[1].values()) == {None}

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ("not json", "the line is no JSON object"),
            ("[1]", "the line is no JSON object"),
            ('{"n":1} {"n":2}', "more than one JSON value"),
            ('{"n":"x"}', "column 'n': 'x' is no long"),
            ('{"n":1.5}', "column 'n': 1.5 is no long"),
            ('{"n":{"a":1}}', "column 'n': {'a': 1} is no long"),
            ('{"n":5,"t":["p",1]}', "column 't': ['p', 1] is no array<string>"),
            ('{"n":5,"ok":1}', "column 'ok': 1 is no boolean"),
            ('{"n":5,"n":6}', "column 'n' stands twice in it"),
            ('{"n":1,}', "Missing a name"),
            ('{"n":1', "no JSON object"),
            ('{"day":"soon"}', "column 'day': 'soon' is no date"),
            ('{"b":"*"}', "column 'b': '*' is no binary"),
            ('{"at":"soon"}', "soon"),
            ("   ", "no JSON object"),
        ],
    )
    def test_a_bad_line_fails_alone(self, tmp_path: Path, bad: str, message: str) -> None:
        path = tmp_path / "a.jsonl"
        good = [json.dumps({"n": i}) for i in range(50)]
        path.write_text("\n".join([*good[:20], bad, "", *good[20:], bad]) + "\n")
        rows, errors = read_all(path, parts=3, format="jsonLines", schema=self.SCHEMA)
        assert [r["n"] for r in rows] == [*range(20), None, *range(20, 50), None]
        assert errors.keys() == {20, 51}
        assert message in errors[20]

    def test_invalid_utf8_and_objects_over_two_lines(self, tmp_path: Path) -> None:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b'{"n":1}\n{"name":"\xff"}\n{"t":[{}\n,{}],"n":1}\n{"n":2}\n')
        rows, errors = read_all(path, format="jsonLines", schema=self.SCHEMA)
        assert [r["n"] for r in rows] == [1, None, None, None, 2]
        assert errors.keys() == {1, 2, 3}


class TestCsv:
    SCHEMA = "name string, n long"

    def test_columns_are_found_by_the_header(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(
            b'\xef\xbb\xbfn,"other, one",name\r\n1,x,a\r\n\r\n,y,"b ""c"", d"\r\n3,"z",\r\n'
        )
        for limit in (1, 2, 10):
            rows, errors = read_all(path, limit=limit, format="csv", schema=self.SCHEMA)
            assert not errors
            assert rows == [
                {"name": "a", "n": 1},
                {"name": 'b "c", d', "n": None},
                {"name": "", "n": 3},
            ]

    @pytest.mark.parametrize(
        ("bad", "message"),
        [
            ("x,1,2", "has 3 fields, the header 2"),
            ("x", "has 1 fields, the header 2"),
            ("x,one", "column 'n': 'one' is no long"),
            ("x,1.5", "is no long"),
            ('"x,1', "the line"),
            ('x,"1', "a quoted field is not closed"),
            ('a"b,"c"d" e,"', "fields"),
            ("x\ry,1", "the line"),
        ],
    )
    def test_a_bad_line_fails_alone(self, tmp_path: Path, bad: str, message: str) -> None:
        path = tmp_path / "a.csv"
        good = [f"w{i},{i}" for i in range(50)]
        lines = ["name,n", *good[:20], bad, "", *good[20:], bad]
        path.write_text("".join(f"{line}\n" for line in lines), newline="")
        rows, errors = read_all(path, parts=3, format="csv", schema=self.SCHEMA)
        assert [r["n"] for r in rows] == [*range(20), None, *range(20, 50), None]
        assert errors.keys() == {20, 51}
        assert message in errors[20]

    def test_a_quote_inside_a_field_is_no_error(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text('name,n\n5" pipe,1\nb,2\n')
        rows, errors = read_all(path, format="csv", schema=self.SCHEMA)
        assert (rows[0]["name"], rows[1]["name"], errors) == ('5" pipe', "b", {})

    def test_invalid_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_bytes(b"name,n\nb\xffad,1\ngood,2\n")
        rows, errors = read_all(path, format="csv", schema=self.SCHEMA)
        assert [r["n"] for r in rows] == [None, 2]
        assert errors == {0: "column 'name': 'b\\\\xffad' is no string"}

    def test_rows_that_are_not_utf8_with_a_wrong_field_count(
        self, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        """Each fails alone, and nothing is written to the log by the way."""
        path = tmp_path / "a.csv"
        bad = [b"\xff", b"x,1,\xff", b'"\xff,1', b"\xff,1,2,3"]
        good = [b"gr\xc3\xb6\xc3\x9fer,%d" % n for n in range(20)]
        path.write_bytes(b"\n".join([b"name,n", *good[:9], *bad, *good[9:], b""]))
        rows, errors = read_all(path, parts=2, format="csv", schema=self.SCHEMA)
        assert [r["n"] for r in rows] == [*range(9), None, None, None, None, *range(9, 20)]
        assert [text.split(";")[0] for text in errors.values()] == [
            f"the line has {count} fields, the header 2" for count in (1, 3, 1, 4)
        ]
        assert capfd.readouterr().err == ""

    def test_a_schema_that_names_a_column_which_a_planned_file_lacks(self, tmp_path: Path) -> None:
        """The schema was edited between the plan and the read: the header is what is wrong."""
        (tmp_path / "a.csv").write_text("name,n\nx,1\n")
        options = {"path": "a.csv", "watch": False, "format": "csv"}
        before = FileSource("s", {**options, "schema": self.SCHEMA}, tmp_path)
        (piece,) = before.plan(None, 10).ranges
        edited = FileSource("s", {**options, "schema": "name string, amount long"}, tmp_path)
        with pytest.raises(
            SourceError,
            match=r"source 's': file .*/a\.csv has the declared column 'amount' not in its header "
            r"\('name,n'\), and records of it are still to be read; correct files\.schema",
        ):
            list(edited.read(piece))
        fewer = FileSource("s", {**options, "schema": "n long"}, tmp_path)
        assert [b.data.to_pylist() for b in fewer.read(piece)] == [[{"n": 1}]]

    def test_dates_and_times(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text(
            'at,day,tags\n2024-01-02 03:04:05,2024-01-02,"[""a""]"\n2024-01-02T03:04:05+01:00,,\n'
        )
        schema = "at timestamp, day date, tags array<string>"
        rows, errors = read_all(path, format="csv", schema=schema)
        assert not errors
        assert [r["at"].hour for r in rows] == [3, 2]
        assert rows[0]["day"] == dt.date(2024, 1, 2)
        assert [r["tags"] for r in rows] == [["a"], None]

    @pytest.mark.parametrize(
        ("kind", "bad"),
        [
            ("long", "5"),
            ("long", '{"k":1}'),
            ("long", "[1.5]"),
            ("long", "[1],[2]"),
            ("long", '[1],"n":[2]'),
            ("long", '[1],"":[2]'),
            ("long", '[1]}{"":[2]'),
            ("long", f"[{10**30}]"),
            ("long", "[" * 100_000 + "]" * 100_000),
            ("string", "[1]"),
            ("string", '["a'),
            ("timestamp", '["soon"]'),
            ("date", "[5]"),
            ("binary", '["*"]'),
        ],
    )
    def test_what_is_no_array_fails_alone(self, tmp_path: Path, kind: str, bad: str) -> None:
        path = tmp_path / "a.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["n", "t"], [1, "[]"], [2, bad], [3, ""], [4, "null"]])
        rows, errors = read_all(path, format="csv", schema=f"n long, t array<{kind}>")
        assert [r["n"] for r in rows] == [1, None, 3, 4]
        assert [r["t"] for r in rows] == [[], None, None, None]
        assert errors.keys() == {1}
        assert f"is no array<{kind}>" in errors[1]

    def test_arrays_hold_what_arrays_of_json_lines_hold(self, tmp_path: Path) -> None:
        arrays = {
            "at": '["2024-01-02T03:04:05+01:00",null]',
            "day": '["2024-01-02"]',
            "b": '["AAE="]',
            "x": "[1,2.5]",
            "deep": '[["a,b"],null,[]]',
        }
        schema = (
            "at array<timestamp>, day array<date>, b array<binary>, x array<double>, "
            "deep array<array<string>>"
        )
        with (tmp_path / "a.csv").open("w", newline="") as file:
            csv.writer(file).writerows([arrays.keys(), arrays.values()])
        line = ",".join(f'"{name}":{text}' for name, text in arrays.items())
        (tmp_path / "a.jsonl").write_text(f"{{{line}}}\n")
        rows, errors = read_all(tmp_path / "a.csv", format="csv", schema=schema)
        assert not errors
        assert (rows, errors) == read_all(tmp_path / "a.jsonl", format="jsonLines", schema=schema)

    @pytest.mark.parametrize("older", [False, True])
    @pytest.mark.parametrize("schema", ["b long, a long", "b long", "a long, b long"])
    def test_what_was_planned_before_an_edit_of_the_schema_keeps_its_columns(
        self, tmp_path: Path, schema: str, older: bool
    ) -> None:
        (tmp_path / "a.csv").write_text("a,b\n1,2\n3,4\n")
        options = {"path": "a.csv", "format": "csv", "schema": "a long, b long"}
        (piece,) = FileSource("s", options, tmp_path).plan(None, 10).ranges
        if older:
            piece = replace(piece, locator={k: v for k, v in piece.locator.items() if k != "k"})
        edited = FileSource("s", {**options, "schema": schema}, tmp_path)
        (batch,) = edited.read(piece)
        rows = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
        assert batch.data.to_pylist() == [
            {n: row[n] for n in batch.data.column_names} for row in rows
        ]
        assert batch.data.column_names == edited.schema().names

    @pytest.mark.parametrize("header", ["name,m", "name,n,n", "name", "name,N"])
    def test_a_header_without_the_declared_columns_is_an_error(
        self, tmp_path: Path, header: str
    ) -> None:
        path = tmp_path / "a.csv"
        path.write_text(f"{header}\na,1\n")
        with pytest.raises(SourceError, match=r"a\.csv has the declared column 'n' (not|twice)"):
            read_all(path, format="csv", schema=self.SCHEMA)

    def test_a_header_that_is_not_complete_yet_is_waited_for(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        path.write_text("name,")
        source = FileSource(
            "s", {"path": "a.csv", "format": "csv", "schema": self.SCHEMA}, tmp_path
        )
        first = source.plan(None, 10)
        assert first.ranges == ()
        path.write_text("name,n\na,1\n")
        (piece,) = source.plan(first.offsets, 10).ranges
        assert next(iter(source.read(piece))).data.to_pylist() == [{"name": "a", "n": 1}]

    def test_a_file_of_nothing_but_its_header_is_drained(self, tmp_path: Path) -> None:
        path = tmp_path / "a.csv"
        for text in ("name,n", "name,n\n", "\n"):
            path.write_text(text)
            assert read_all(path, format="csv", schema=self.SCHEMA) == ([], {})


class TestParquet:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        table = pa.table({"n": range(1000), "w": [f"w{i % 7}" for i in range(1000)]})
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=130)
        return tmp_path / "a.parquet"

    @pytest.mark.parametrize(("limit", "parts"), [(1000, 1), (333, 1), (1000, 7), (129, 2)])
    def test_rows_in_order(self, path: Path, limit: int, parts: int) -> None:
        rows, errors = read_all(path, limit=limit, parts=parts, format="parquet")
        assert [r["n"] for r in rows] == list(range(1000))
        assert not errors

    def test_rows_behind_many_batches_of_a_group(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(parquet, "BATCH_ROWS", 40)
        rows, _ = read_all(path, limit=333, parts=3, format="parquet")
        assert [r["n"] for r in rows] == list(range(1000))

    def test_payload(self, path: Path) -> None:
        source = FileSource("s", {"path": path.name, "format": "parquet"}, path.parent)
        (piece,) = source.plan(None, 1000).ranges
        replay = Replay("s", piece.partition, 700, 1, 0.0, source.locate(piece, 700))
        assert json.loads(source.payload(replay)) == {"n": 700, "w": "w0"}

    def test_a_truncated_file_is_an_error_with_a_remedy(self, path: Path) -> None:
        os.truncate(path, path.stat().st_size - 100)
        with pytest.raises(SourceError, match=r"is no whole Parquet file.*begins with _ or \."):
            read_all(path, format="parquet")

    @pytest.mark.parametrize("size", [0, 3])
    def test_a_file_without_content_is_an_error(self, path: Path, size: int) -> None:
        os.truncate(path, size)
        with pytest.raises(SourceError, match="is no whole Parquet file"):
            read_all(path, format="parquet")

    def test_a_damaged_page_is_an_error(self, path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[10:400] = bytes(390)
        path.write_bytes(data)
        with pytest.raises(SourceError, match=r"a\.parquet cannot be read behind its row"):
            read_all(path, format="parquet")

    def test_a_replaced_file_is_an_error(self, path: Path) -> None:
        options = {"path": path.name, "format": "parquet"}
        source = FileSource("s", options, path.parent)
        plan = source.plan(None, 500)
        pq.write_table(pa.table({"n": range(9000), "w": [f"{i}" for i in range(9000)]}), path)
        with pytest.raises(SourceError, match="was changed in the 500 records already read"):
            FileSource("s", options, path.parent).plan(json.loads(json.dumps(plan.offsets)), 10)
        with pytest.raises(SourceError, match="was replaced after its rows were planned"):
            list(source.read(plan.ranges[0]))

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"n": ["a"], "w": ["b"]}, "has string in the column 'n', the first file has"),
            ({"n": [1]}, "lacks the column 'w', which the first file has"),
        ],
    )
    def test_a_file_of_other_columns_is_an_error(
        self, path: Path, columns: dict[str, Any], message: str
    ) -> None:
        pq.write_table(pa.table(columns), path.parent / "b.parquet")
        source = FileSource("s", {"path": ".", "format": "parquet"}, path.parent)
        with pytest.raises(SourceError, match=message):
            source.plan(None, 2000)

    def test_columns_that_the_first_file_has_not_are_left_out(self, path: Path) -> None:
        pq.write_table(pa.table({"z": [1], "n": [7], "w": ["b"]}), path.parent / "b.parquet")
        source = FileSource("s", {"path": ".", "format": "parquet"}, path.parent)
        read = [
            part.data for piece in source.plan(None, 2000).ranges for part in source.read(piece)
        ]
        assert read[-1].to_pylist() == [{"n": 7, "w": "b"}]

    def test_new_files_arrive(self, path: Path) -> None:
        source = FileSource("s", {"path": ".", "format": "parquet"}, path.parent)
        plan = source.plan(None, 2000)
        assert plan.records == 1000
        pq.write_table(pa.table({"n": [7], "w": ["b"]}), path.parent / "b.parquet")
        plan = source.plan(plan.offsets, 2000)
        rows = [r for p in plan.ranges for b in source.read(p) for r in b.data.to_pylist()]
        assert rows == [{"n": 7, "w": "b"}]
        assert source.plan(plan.offsets, 2000).ranges == ()


def test_csv_carriage_returns_that_end_no_line_are_told(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'n,t\n1,a\rb\n\r\r\n2,"c\rd"\n3,e\r\r\n4,"f\r\r\n')
    rows, errors = read_all(path, format="csv", schema="n long, t string")
    assert [(row["n"], row["t"]) for row in rows if row["n"]] == [(2, "c\rd"), (3, "e")]
    outside = "a carriage return stands in the line outside of quotes; the line is "
    assert errors == {
        0: outside + repr("1,a\rb"),
        1: outside + repr("\r"),
        4: "a quoted field is not closed; the line is " + repr('4,"f\r'),
    }


@pytest.mark.parametrize(
    ("field", "times"), [('"x" 3" nail', 6.0), ("x over\r\r", 6.0), ('x 3" nail', 1.5)]
)
def test_csv_lines_that_are_split_alone_cost_no_more_the_more_they_are(tmp_path, field, times):
    """Such a file may have 100,000 of them in what is decoded at once. A quote that does not begin
    a field has nothing split alone."""

    def calls(rows: int) -> int:
        path = tmp_path / f"{rows}.csv"
        body = "".join(f"{n},{field}\n" for n in range(rows))
        path.write_bytes(f"n,t\n{body}".encode())
        found = 0

        def note(_frame: Any, event: str, _argument: Any) -> None:
            nonlocal found
            found += event == "call"

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            read, errors = read_all(path, format="csv", schema="n long, t string")
        finally:
            sys.setprofile(before)
        assert [row["n"] for row in read] == list(range(rows))
        assert not errors
        return found

    calls(2)  # what is imported on first use
    assert calls(1600) < times * calls(400)


CSV_LINE = st.text(alphabet='a",\r \u00e9', min_size=1, max_size=9)


@given(st.lists(CSV_LINE.filter(lambda line: line.strip("\r")), min_size=1, max_size=12))
def test_csv_lines_are_read_together_as_each_is_alone(texts):
    decoder = CsvDecoder(pa.schema([("a", pa.string()), ("b", pa.string())]))

    def read(part: list[str]) -> tuple[list[dict[str, str]], set[int]]:
        found = decoder.decode(find_lines("".join(f"{t}\n" for t in part).encode(), False), None)
        return found.data.to_pylist(), {row for row, _ in found.errors}

    rows, wrong = read(texts)
    alone = [read([text]) for text in texts]
    assert rows == [one[0] for one, _ in alone]
    assert wrong == {number for number, (_, failed) in enumerate(alone) if failed}
