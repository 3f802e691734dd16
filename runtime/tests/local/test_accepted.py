"""Which life a component is in, however often it was removed and brought back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.errors import NewerFormatError, WorkFolderError
from millrace.homes.accepted import Accepted, Retired, accept
from millrace.local.accepted import read_accepted, write_accepted
from millrace.protocol.types import Components


def topology(sources: str, processors: str = "p", sinks: str = "x", path: str = "out"):
    spec = {
        "sources": [{"name": name} for name in sources],
        "processors": [{"name": name} for name in processors],
        "sinks": [{"name": name, "files": {"path": path}} for name in sinks],
    }
    return {"metadata": {"name": "t"}, "spec": spec}


def after(*documents) -> Accepted:
    accepted = None
    for document in documents:
        accepted = accept(accepted, document)
    assert accepted is not None
    return accepted


def test_a_component_that_comes_back_is_in_another_life() -> None:
    found = after(topology("ab", "pq"), topology("a", "q"), topology("abc", "pq"))
    assert found.components == Components(2, {"a": 0, "b": 2, "c": 2}, {"p": 2, "q": 0}, {"x": 0})


def test_edits_that_remove_nothing_and_add_nothing_count_for_nothing() -> None:
    found = after(topology("a"), topology("a", path="elsewhere"), topology("a"))
    assert found == Accepted(topology("a"), Components(0, {"a": 0}, {"p": 0}, {"x": 0}))


def test_removed_sinks_are_kept_as_they_were_declared() -> None:
    steps = topology("a", sinks="xy"), topology("a"), topology("a", sinks="xy", path="new")
    found = after(*steps, topology("a"))
    assert found.components.sinks == {"x": 0}
    # The path of y is that of the file that declared it last; x was never removed.
    assert found.retired == (
        Retired("y", 0, {"name": "y", "files": {"path": "out"}}),
        Retired("y", 2, {"name": "y", "files": {"path": "new"}}),
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file, older = tmp_path / "accepted.json", tmp_path / "topology.json"
    assert read_accepted(file, older) is None
    found = after(topology("ab", sinks="xy"), topology("a"))
    write_accepted(file, found)
    assert read_accepted(file, older) == found
    write_accepted(file, accept(found, topology("a")))
    assert read_accepted(file, older) == found


def test_a_folder_of_the_first_release_has_everything_in_its_first_life(tmp_path: Path) -> None:
    older = tmp_path / "topology.json"
    older.write_text(json.dumps(topology("ab")))
    found = read_accepted(tmp_path / "accepted.json", older)
    assert found == after(topology("ab"))
    assert accept(found, topology("ac")).components.sources == {"a": 0, "c": 1}


def test_damaged_and_newer_files(tmp_path: Path) -> None:
    file = tmp_path / "accepted.json"
    for text in ("{", "[]", '{"format": 1}'):
        file.write_text(text)
        with pytest.raises(WorkFolderError, match=r"accepted\.json: cannot be read"):
            read_accepted(file, tmp_path / "topology.json")
    file.write_text('{"format": 7}')
    with pytest.raises(NewerFormatError, match="has format 7"):
        read_accepted(file, tmp_path / "topology.json")


def test_a_file_from_before_checksums_is_read(tmp_path: Path) -> None:
    file, found = tmp_path / "accepted.json", after(topology("ab", sinks="xy"), topology("a"))
    write_accepted(file, found)
    document = json.loads(file.read_text())
    del document["checksum"]
    file.write_text(json.dumps({**document, "format": 1}))
    assert read_accepted(file, tmp_path / "topology.json") == found
    file.write_text(json.dumps(document))
    with pytest.raises(WorkFolderError, match="its checksum does not fit"):
        read_accepted(file, tmp_path / "topology.json")
