"""Deleting snapshots of a place that several topologies share."""

from __future__ import annotations

from dataclasses import replace

import pytest
from lived_topology import Lived, place

from millrace.errors import SnapshotError
from millrace.local.snapshots.deleting import delete_of
from millrace.snapshots.reading import MANIFEST, load, read_part
from millrace.snapshots.retention import own_name
from millrace.snapshots.writing import Subject, write_snapshot


def test_only_those_of_the_own_life_are_deleted(lived: Lived) -> None:
    there, uid = place(lived), lived.folder.uid
    manifest = load(there, "seven")
    objects = {part.name: read_part(there, manifest, part) for part in manifest.parts}
    delete_of(lived.folder, "seven")
    assert there.folders() == []
    # As another topology that keeps its snapshots in the same place.
    record = replace(manifest.decoded, uid="f" * 32)
    subject = Subject("first", manifest.document, manifest.key_groups, record, 0.0)
    write_snapshot(there, "seven", subject, lambda name, *_: objects[name], lambda: None)
    with pytest.raises(SnapshotError) as found:
        delete_of(lived.folder, "seven")
    assert str(found.value) == (
        f"snapshot seven: is of topology 'first' with life {'f' * 32}; that in "
        f"{lived.folder.path} has life {uid}. Nothing was deleted; to delete it all the same, name "
        f"its place: --place {there.shown}"
    )
    assert load(there, "seven").uid == "f" * 32


@pytest.mark.parametrize("left", ["unfinished", "damaged"])
def test_of_what_cannot_be_read_the_name_says_whose_it_is(lived: Lived, left: str) -> None:
    there = place(lived)
    record = load(there, "seven").decoded
    own, other = own_name(record), f"auto-{'f' * 8}-1.1.4"
    file = MANIFEST if left == "damaged" else f"{'0' * 64}.arrow"
    for name in (own, other, "named"):
        there.write(name, file, b"{")
    with pytest.raises(SnapshotError, match="is of another topology, or of another life"):
        delete_of(lived.folder, other)
    for name in (own, "named"):
        delete_of(lived.folder, name)
    assert there.folders() == [other, "seven"]
