"""Bad input between and within runs of ``millrace run``: a clear error, the right exit code, and
nothing lost once it is mended.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_calls import called

from millrace.errors import ExitCode
from millrace_e2e import feed, harness
from millrace_e2e.checker import Promise
from millrace_e2e.harness import Place, running
from millrace_e2e.judge import judge
from millrace_e2e.topologies import Shape, history

LINES = 200
END_S = 400.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "history").make()


def write(place: Place, change: Callable[[dict[str, Any]], None] | None = None) -> None:
    document = history(Shape(max_records=100))
    if change is not None:
        change(document["spec"])
    place.write(document)


def refused(place: Place, code: ExitCode, *arguments: str) -> str:
    """What a run says that ends with this exit code."""
    with running(place, *arguments, environment={"MILLRACE_REACH_S": "1"}) as run:
        assert run.wait(END_S) == code, run.tail()
    return run.output()


def refused_by(place: Place, change: Callable[[dict[str, Any]], None], code: ExitCode) -> str:
    """What a run of an edited topology says; nothing of a run may be there afterwards."""
    write(place, change)
    said = refused(place, code)
    assert not (place.work / "view.json").exists()
    return said


# -- topology files


def test_yaml_that_cannot_be_read_is_refused_with_its_line(place):
    place.topology.write_text("apiVersion: millrace.dev/v1alpha1\nspec: [unclosed\nkind: x\n")
    said = refused(place, ExitCode.INVALID_TOPOLOGY)
    assert "line 3" in said
    assert "malformed YAML" in said


def test_a_missing_topology_file_is_named(place):
    said = refused(place, ExitCode.INVALID_TOPOLOGY)
    assert f"{place.topology}" in said.replace("\n", "")
    assert "does not exist" in said


def test_an_unknown_field_is_named_with_its_path_and_the_nearest_one(place):
    said = refused_by(place, lambda spec: spec.update(paralelism=3), ExitCode.INVALID_TOPOLOGY)
    assert "spec.paralelism" in said
    assert "parallelism" in said


def test_a_module_that_cannot_be_imported_is_named_with_its_error(place):
    code = place.base / "code"
    code.mkdir()
    (code / "broken.py").write_text("import no_such_package_anywhere\n")

    def change(spec: dict[str, Any]) -> None:
        spec["code"]["path"] = "code"
        spec["processors"][0]["function"] = "broken:parse"

    said = refused_by(place, change, ExitCode.INVALID_TOPOLOGY)
    assert "spec.processors[0].function" in said
    assert "no_such_package_anywhere" in said


# -- what a run needs


def test_missing_input_is_named_before_anything_is_read(place):
    place.texts.rmdir()
    write(place)
    said = refused(place, ExitCode.SOURCE)
    assert "source 'lines'" in said
    assert "texts does not exist" in said.replace("\n", " ")
    assert "files.path" in said


# -- what another process, or a user between runs, may do


def test_a_port_in_use_and_a_file_that_is_not_what_it_was_stop_a_run_until_they_are_mended(place):
    """And a line that is no UTF-8 is a dead letter, with all others exact."""
    first, second = place.texts / "a.txt", place.texts / "b.txt"
    whole = feed.text(range(LINES), 1)
    feed.add_file(first, whole)
    broken = b"r9999999 ok \xff\xfe\n"
    feed.add_file(second, broken + feed.text(range(LINES, 2 * LINES), 1))
    run_once_a_port_is_free(place)

    write(place)
    first.write_bytes(whole[: len(whole) // 2])
    said = refused(place, ExitCode.SOURCE)
    assert f"file {first}" in said
    assert "has shrunk" in said

    feed.add_file(first, whole)
    feed.append(place.texts / "c.txt", feed.text(range(2 * LINES, 3 * LINES), 1))
    harness.run_to_end(place)
    (letter,) = letters(place)
    assert (letter["payloadEncoding"], letter["processor"]) == ("base64", "lines")
    assert base64.b64decode(letter["payload"]) == broken.rstrip(b"\n")
    assert "is not valid UTF-8" in letter["error"]
    without_line(second, broken)
    assert judge(place, Promise.EXACTLY_ONCE) == []


def run_once_a_port_is_free(place: Place) -> None:
    """Said when the first driver ends; meanwhile the port may be freed, so others are started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]

        def change(spec: dict[str, Any]) -> None:
            conf = {"spark.driver.port": str(port), "spark.port.maxRetries": "0"}
            spec["spark"]["conf"].update(conf)

        write(place, change)
        with running(place) as run:
            run.until(lambda: run.events("DriverEnded"), "the end of a driver")
            (ended, *_) = run.events("DriverEnded")
            assert "Address already in use" in ended["text"]
            assert f"starting from {port}" in ended["text"]
            assert "spec.spark.conf" in ended["text"]
            taken.close()
            assert run.wait(END_S) == 0, run.tail()


def letters(place: Place) -> list[dict[str, Any]]:
    found = called("dead-letters", "list", "--json", "--workdir", str(place.work))
    assert found.returncode == 0, found.stderr
    return [json.loads(line) for line in found.stdout.splitlines()]


def without_line(path: Path, line: bytes) -> None:
    """What the judge, who reads text, is shown of a file."""
    path.write_bytes(path.read_bytes().replace(line, b""))
