from __future__ import annotations

import dataclasses
import json
import zlib
from dataclasses import replace
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from millrace.errors import NewerFormatError, ProtocolError
from millrace.protocol import codec, types
from millrace.protocol.acklog import Open
from millrace.protocol.record import Outcome, first_record, seal
from millrace.protocol.types import (
    FORMAT,
    AttemptId,
    AttemptPlan,
    CloseMarker,
    Cohort,
    FailedRoot,
    Intent,
    Member,
    Phase,
    Record,
    Replay,
    RootRange,
    Roots,
    Sealed,
    Segment,
    Staged,
    Stamp,
    Tag,
    TaskId,
    TaskReport,
    Totals,
    Verdict,
    View,
)
from millrace.protocol.upgrades import STEPS

KINDS = [View, Record, Intent, CloseMarker, Verdict, AttemptPlan, TaskReport]

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def _values(hint: Any, mask: bool = False) -> st.SearchStrategy[Any]:
    """Values of an annotation, written apart from the codec's own reading of annotations."""
    hint = getattr(hint, "__supertype__", hint)
    if dataclasses.is_dataclass(hint):
        return _instances(hint)
    origin, parts = get_origin(hint), get_args(hint)
    if type(None) in parts:
        return st.none() | _values(parts[0])
    if origin is tuple and parts[-1] is Ellipsis:
        return st.lists(_values(parts[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(_values(part) for part in parts))
    if origin is frozenset:
        return st.frozensets(_values(parts[0]), max_size=3)
    if origin is not None:
        return st.dictionaries(st.text(max_size=4), _values(parts[1], mask), max_size=2)
    if hint is int:
        return st.integers(0, (1 << 130) - 1) if mask else st.integers(-(1 << 64), 1 << 64)
    simple = {
        str: st.text(max_size=8),
        bool: st.booleans(),
        float: st.floats(allow_nan=False, allow_infinity=False),
        Phase: st.sampled_from(Phase),
        Any: _JSON,
    }
    return simple[hint]


def _instances(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    masks = {"groups", "uncombined"}
    names = [field.name for field in dataclasses.fields(kind)]
    return st.builds(kind, **{n: _values(hints[n], n in masks) for n in names})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # large
@given(data=st.data())
def test_what_is_written_is_read_back(kind: type, data: st.DataObject) -> None:
    value = data.draw(_instances(kind))
    assert codec.decode(kind, codec.encode(value)) == value


@settings(deadline=None)
@given(_instances(Record), st.data())
def test_no_damaged_byte_passes_for_another_record(record: Record, data: st.DataObject) -> None:
    text = codec.encode_record(record)
    at = data.draw(st.integers(0, len(text) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != text[at]))
    damaged = text[:at] + bytes([byte]) + text[at + 1 :]
    with pytest.raises((ProtocolError, NewerFormatError)):
        codec.decode_record(damaged)


@settings(deadline=None)
@given(_instances(Intent), st.data())
def test_truncated_text_is_refused(intent: Intent, data: st.DataObject) -> None:
    text = codec.encode(intent)
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ProtocolError):
        codec.decode(Intent, text[:cut])


def _record() -> Record:
    segment = Segment("3.1.0.1.0.7/state/counts", 1, (1 << 128) - 1, True, 10, 200, "ab")
    staged = Staged("out", "3.1.0.1.0.7/out/out", "cd", 10, 200, {"path": "x"})
    intent = Intent(2, (RootRange("lines", 1 << 63, 5, 7, {"at": 3}),))
    return Record(
        "uid", Tag(1, 3, 2, 9), 1, {"lines": [1, 2]}, (intent,), {"counts": (segment,)},
        (Replay("lines", 1, 4, 2, 1.5),), (), (Sealed(1, "ef", (staged,)),), 0,
    )  # fmt: skip


def test_masks_are_hex_and_defaults_are_left_out() -> None:
    document = json.loads(codec.encode_record(_record()))
    assert (document["format"], document["kind"]) == (FORMAT, "Record")
    segment = document["value"]["chains"]["counts"][0]
    assert segment["groups"] == "f" * 32
    assert "totals" not in document["value"]
    assert "locator" not in document["value"]["replays"][0]


def test_members_keep_their_url_and_node() -> None:
    members = (Member("state-0", "ab", "redis://h:1", "n1"),)
    view = View("u", 1, 2, Phase.OPEN, 3, members, members, 2, (("state-0",),))
    read = codec.decode_view(codec.encode_view(view))
    assert read == view
    assert (read.target[0].url, read.target[0].node) == ("redis://h:1", "n1")
    assert read.stamp() == Stamp(2, 3)


def test_a_newer_format_is_named() -> None:
    now = b'"format":%d' % FORMAT
    text = codec.encode_record(_record()).replace(now, b'"format":%d' % (FORMAT + 6))
    with pytest.raises(NewerFormatError, match=f"format {FORMAT + 6}.*format {FORMAT}"):
        codec.decode_record(text)


@pytest.mark.parametrize(
    "text",
    [b"", b"null", b"{}", b"[1]", b'{"format":"1"}', b'{"format":0}', b"\xff\xfe", b"[" * 100_000],
)
def test_foreign_text_is_refused(text: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"Record of \d+ bytes cannot be read"):
        codec.decode_record(text)


def test_another_kind_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not that of a Verdict"):
        codec.decode(Verdict, codec.encode(AttemptId(1, 2, 3)))


@pytest.mark.parametrize("locator", [{1, 2}, float("nan"), b"x", object()])
def test_a_locator_that_is_not_json_is_named(locator: Any) -> None:
    with pytest.raises(ProtocolError, match="Intent: cannot be written as JSON"):
        codec.encode(Intent(1, (RootRange("s", 0, 0, 1, locator),)))


def test_every_value_of_the_protocol_has_a_json_form() -> None:
    named = [k for k in vars(types).values() if dataclasses.is_dataclass(k)]
    kinds = [k for k in named if k.__module__ == types.__name__]
    assert len(kinds) > 15
    for kind in kinds:
        codec._adapter(kind)


EARLIER = (
    b'{"format":1,"kind":"Record","crc":"e39bf909","value":{"uid":"u","tag":{"timeline":1,'
    b'"execution":2,"epoch":1,"seq":7},"sealed":3,"offsets":{"s":4},"intents":[{"window":4,'
    b'"ranges":[{"source":"s","partition":1,"start":4,"count":2,"locator":{"at":4}}],'
    b'"replays":[{"source":"s","partition":1,"offset":0,"number":1,"due_s":5.0,"locator":{"at":0},'
    b'"processor":"p","error":"no"}]}],"chains":{},"replays":[{"source":"s","partition":1,'
    b'"offset":1,"number":2,"due_s":6.0,"processor":"p","error":"no","alone":true}],'
    b'"dead":[{"name":"1.1.1.1/dead","window":1,"count":2}],"unpublished":[],"published":3,'
    b'"totals":{"roots":3,"windows":3,"replays":2,"dead":1}}}'
)


def test_a_record_from_before_there_were_cohorts_is_read_and_sealed_on() -> None:
    """Roots that waited then count with those that are read now."""
    record = codec.decode_record(EARLIER)
    assert record.cohorts == ()
    assert [replay.window for replay in record.replays] == [0]
    assert [replay.delay_s for replay in record.replays] == [0.0], "its clock means nothing now"
    assert record.intents[0].replays[0].delay_s == 0.0
    sealed = seal(record, Outcome())
    assert sealed.cohorts == (Cohort(4, 3, 3, 0),)
    assert codec.decode_record(codec.encode_record(sealed)) == sealed


def test_a_record_of_the_first_release_is_read() -> None:
    """Written before records said which components they are for."""
    data = (
        b'{"format":1,"kind":"Record","crc":"%08x","value":'
        b'{"uid":"u","tag":{"timeline":1,"execution":2,"epoch":1,"seq":7},"sealed":3,'
        b'"offsets":{"lines":{"a.txt":10}},"intents":[],"chains":{},"replays":[],"dead":[],'
        b'"unpublished":[],"published":3}}'
    )
    value = data[data.index(b'"value":') + 8 : -1]
    record = codec.decode_record(data.replace(b"%08x", b"%08x" % zlib.crc32(value)))
    assert (record.sealed, record.offsets) == (3, {"lines": {"a.txt": 10}})
    assert (record.components, record.since) == (None, {})
    again = codec.encode_record(record)
    assert again.startswith(b'{"format":%d,' % FORMAT)
    assert codec.decode_record(again) == record


def garbled(value: Any, **changes: Any) -> bytes:
    """A document whose checksum is right and whose content is not."""
    document = json.loads(codec.encode(value))["value"] | changes
    body = json.dumps(document, separators=(",", ":")).encode()
    kind = type(value).__name__.encode()
    return b'{"format":%d,"kind":"%b","crc":"%08x","value":%b}' % (
        FORMAT,
        kind,
        zlib.crc32(body),
        body,
    )


OPEN_VIEW = View("u", 1, 2, Phase.OPEN, 1, (), (), 2, (("a",), ("a", "b")))
SOME_RECORD = replace(first_record("u", Tag(1, 1, 1, 1)), offsets={"s": 1})
SOME_SEGMENT = Segment("s1", 1, 5, True)


@pytest.mark.parametrize(
    ("value", "changes"),
    [
        (OPEN_VIEW, {"phase": "ajar"}),
        (OPEN_VIEW, {"owners": {"a": 1}}),
        (OPEN_VIEW, {"epoch": "2"}),
        (SOME_RECORD, {"offsets": [1]}),
        (SOME_RECORD, {"chains": [1]}),
        (SOME_RECORD, {"tag": 7}),
        (SOME_SEGMENT, {"groups": "five"}),
        (SOME_SEGMENT, {"groups": 5}),
    ],
)
def test_garbled_content_under_a_right_checksum_is_refused(value: Any, changes: Any) -> None:
    assert codec.decode(type(value), garbled(value)) == value
    with pytest.raises(ProtocolError, match="cannot be read"):
        codec.decode(type(value), garbled(value, **changes))


def rewritten(value: Any, old: bytes, new: bytes) -> bytes:
    data = codec.encode(value)
    assert old in data
    return data.replace(old, new, 1)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (b'"kind":"Record"', b'"kind":"Intent"', "its head is not that of a Record"),
        (b'","value":', b'", "value":', "its head is not that of a Record"),
        (b'"sealed":0', b'"sealed":9', "its checksum differs"),
        (b'"crc":"', b'"crc":"0', "its head is not that of a Record"),
    ],
)
def test_a_document_that_was_touched_is_refused(old: bytes, new: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        codec.decode_record(rewritten(SOME_RECORD, old, new))


def test_a_document_ends_where_its_value_does() -> None:
    """The checksum is over the value alone."""
    data = codec.encode_record(SOME_RECORD)
    assert codec.decode_record(data) == SOME_RECORD
    for end in (b"]", b" "):
        with pytest.raises(ProtocolError, match="its checksum differs from its content"):
            codec.decode_record(data[:-1] + end)


def without(value: Any, *names: str) -> bytes:
    document = json.loads(codec.encode(value))["value"]
    body = json.dumps({k: v for k, v in document.items() if k not in names}).encode()
    kind = type(value).__name__.encode()
    head = b'{"format":%d,"kind":"%b","crc":"%08x","value":%b}'
    return head % (FORMAT, kind, zlib.crc32(body), body)


def test_what_must_be_there_is_named_if_it_is_not() -> None:
    several = ("uid", "timeline", "phase", "execution", "epoch")
    with pytest.raises(ProtocolError, match=f"a View lacks {', '.join(sorted(several))};"):
        codec.decode_view(without(OPEN_VIEW, *several))
    with pytest.raises(ProtocolError, match="a Record lacks tag"):
        codec.decode_record(without(SOME_RECORD, "tag"))
    assert codec.decode_record(without(SOME_RECORD, "finished")) == SOME_RECORD


def test_what_a_part_lacks_is_named_with_the_part_and_nothing_else_is() -> None:
    whole = json.loads(codec.encode(SOME_RECORD))["value"]
    tag = {"timeline": 1, "seq": "x"}
    with pytest.raises(ProtocolError, match="cannot be read: tag lacks epoch, execution;"):
        codec.decode_record(garbled(SOME_RECORD, tag=tag, intents=[{"ranges": []}]))
    body = {name: part for name, part in whole.items() if name != "uid"} | {"tag": tag}
    with pytest.raises(ProtocolError, match="cannot be read: a Record lacks uid;"):
        codec.decode_record(written("Record", FORMAT, body))


def test_a_mask_that_is_a_number_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"groups: .*Input should be a bit mask in hex, not 5"):
        codec.decode(Segment, garbled(SOME_SEGMENT, groups=5))


def test_a_part_of_another_type_is_never_written() -> None:
    """It could not be read back."""
    for wrong in ({"partition": "0"}, {"error": 3}, {"delay_s": "1"}):
        with pytest.raises(ProtocolError, match="Replay: cannot be written as JSON"):
            codec.encode(replace(Replay("s", 0, 1, 1, 0.0), **wrong))  # type: ignore[arg-type]


def test_names_that_are_no_utf_8_and_deep_nesting_are_read_back() -> None:
    """Python's json writes both, and files may be called so."""
    deep: Any = {"caf\udce9": "\ud83d"}
    for _ in range(300):
        deep = [deep]
    for locator in ({"file": "caf\udce9.txt"}, deep):
        intent = Intent(4, (RootRange("s", 1, 2, 3, locator),), (Replay("s", 1, 0, 1, 0.0),))
        assert codec.decode(Intent, codec.encode(intent)) == intent
    told = FailedRoot(3, "split", "OSError: caf\udce9.txt")
    assert codec.decode(FailedRoot, codec.encode(told)) == told


def test_a_default_is_left_out_only_if_it_is_of_the_same_type() -> None:
    """1 equals True and 1.0, and would come back as another value."""

    def value(kind: Any) -> dict[str, Any]:
        return json.loads(codec.encode(kind))["value"]

    plain = Replay("s", 0, 1, 1, 0.0)
    assert {"alone", "processor", "error", "locator"}.isdisjoint(value(plain))
    assert value(replace(plain, locator=0))["locator"] == 0
    assert value(replace(plain, locator=""))["locator"] == ""
    for record in (SOME_RECORD, replace(SOME_RECORD, totals=Totals(), since={})):
        assert {"totals", "since", "components"}.isdisjoint(value(record))


def test_whole_numbers_pass_for_seconds_and_no_other_type_for_another() -> None:
    whole = garbled(Replay("s", 0, 1, 1, 2.5), delay_s=3)
    assert codec.decode(Replay, whole).delay_s == 3
    for name, part in (("offset", 1.5), ("offset", True), ("alone", 1), ("source", 3)):
        with pytest.raises(ProtocolError, match=f"{name}: Input should be a valid .*, not {part}"):
            codec.decode(Replay, garbled(Replay("s", 0, 1, 1, 2.5), **{name: part}))


def test_lists_of_a_known_length_have_that_length() -> None:
    report = TaskReport(TaskId(0, 1, 2), roots_read=((0, 3),))
    for runs in ([[0, 3, 4]], [[0]], [7], {"0": 3}):
        with pytest.raises(ProtocolError, match=r"cannot be read: roots_read(\.0|\.0\.[12])?[: ]"):
            codec.decode(TaskReport, garbled(report, roots_read=runs))


def test_a_field_that_is_not_known_yet_asks_for_the_release_that_wrote_it() -> None:
    with pytest.raises(NewerFormatError, match="View has the field 'colour', which"):
        codec.decode_view(garbled(OPEN_VIEW, colour=2))


def test_until_when_is_only_read_where_a_replay_said_so() -> None:
    with pytest.raises(NewerFormatError, match="Tag has the field 'due_s'"):
        codec.decode(Tag, garbled(Tag(1, 1, 1, 1), due_s=4.0))


@dataclasses.dataclass(frozen=True)
class Shapes:
    """What annotations may say, without defaults."""

    maybe: int | None
    known: Intent | None
    plain: list[int]
    pair: tuple[int, Tag]


SHAPES = Shapes(4, Intent(1, ()), [5, 6], (7, Tag(1, 2, 3, 4)))


def test_fields_without_defaults_are_kept_whatever_they_are() -> None:
    for value in (SHAPES, replace(SHAPES, maybe=None, known=None, plain=[])):
        assert codec.decode(Shapes, codec.encode(value)) == value


def test_a_pair_is_never_written_short() -> None:
    with pytest.raises(ProtocolError, match="Shapes: cannot be written as JSON"):
        codec.encode(replace(SHAPES, pair=(7,)))  # type: ignore[arg-type]


def test_the_format_of_today_is_the_second_and_a_third_is_refused() -> None:
    """Releases read each other's documents by this number."""
    today = (
        b'{"format":2,"kind":"Tag","crc":"c4eef0bb",'
        b'"value":{"timeline":1,"execution":2,"epoch":3,"seq":4}}'
    )
    assert codec.encode(Tag(1, 2, 3, 4)) == today
    assert codec.decode(Tag, today) == Tag(1, 2, 3, 4)
    with pytest.raises(NewerFormatError, match="has format 3"):
        codec.decode(Tag, today.replace(b'"format":2', b'"format":3'))


def written(kind: str, number: int, value: Any) -> bytes:
    """A document as a release that writes this format would have written it."""
    body = json.dumps(value, separators=(",", ":")).encode()
    head = b'{"format":%d,"kind":"%b","crc":"%08x","value":%b}'
    return head % (number, kind.encode(), zlib.crc32(body), body)


def test_an_older_format_goes_through_every_step_up_to_today() -> None:
    """A format 0 that never was: it counted windows from zero, and called the uid a name."""
    steps = {
        0: {
            "Record": lambda value: {
                **{k: v for k, v in value.items() if k != "name"},
                "uid": value["name"],
                "sealed": value["sealed"] + 1,
            }
        },
        **STEPS,
    }
    waits = {"source": "s", "partition": 1, "offset": 2, "number": 1, "due_s": 1e9}
    value = {
        "name": "u",
        "tag": {"timeline": 1, "execution": 1, "epoch": 1, "seq": 1},
        "sealed": 3,
        "published": 4,
        "offsets": {},
        "chains": {},
        "intents": [],
        "dead": [],
        "unpublished": [],
        "replays": [waits],
    }
    data = written("Record", 0, value)
    record = codec.decode(Record, data, steps)
    assert (record.uid, record.sealed) == ("u", 4)
    assert record.replays == (Replay("s", 1, 2, 1, 0.0),), "the step from 1 to 2 came behind it"
    assert codec.decode(Record, codec.encode(record)) == record
    # A kind that a step does not name is the same in both formats.
    assert codec.decode(Tag, written("Tag", 0, value["tag"]), steps) == Tag(1, 1, 1, 1)
    with pytest.raises(ProtocolError, match="there has never been a format 0"):
        codec.decode(Record, data)


@pytest.mark.parametrize("value", [[], 7, {"intents": [3]}, {"replays": 3}, {"replays": {"a": 1}}])
def test_an_older_document_that_is_garbled_is_refused_as_such(value: Any) -> None:
    with pytest.raises(ProtocolError, match=r"Record of \d+ bytes cannot be read"):
        codec.decode(Record, written("Record", 1, value))


def test_every_document_of_the_first_format_that_holds_replays_is_read() -> None:
    waits = {"source": "s", "partition": 1, "offset": 2, "number": 1, "due_s": 5.0}
    intent = {"window": 4, "ranges": [], "replays": [waits]}
    attempt = {"execution": 1, "window": 2, "attempt": 3}
    roots = {"intent": intent, "replays": [waits], "letters": [waits]}
    now = Replay("s", 1, 2, 1, 0.0)
    plan = Intent(4, (), (now,))
    sealed = Sealed(4, "ab", (), Roots(plan, (now,), (now,)))
    close = {"id": attempt, "intent": intent, "excluded": [2], "winners": [], "roots_read": []}
    stamp = {"epoch": 1, "execution": 1}
    run = {"id": attempt, "stamp": stamp, "intent": intent, "excluded": []}
    run |= {"uncombined": {}, "chains": {}}
    for value, expected in (
        (waits, now),
        (intent, plan),
        (roots, sealed.roots),
        ({"window": 4, "digest": "ab", "staged": [], "roots": roots}, sealed),
        (close, CloseMarker(AttemptId(1, 2, 3), plan, frozenset({2}), (), ())),
        (run, AttemptPlan(AttemptId(1, 2, 3), Stamp(1, 1), plan, frozenset(), {}, {})),
    ):
        kind = type(expected)
        assert codec.decode(kind, written(kind.__name__, 1, value)) == expected


def test_a_moment_in_a_document_of_today_is_a_field_that_nobody_knows() -> None:
    with pytest.raises(NewerFormatError, match="the field 'due_s'"):
        codec.decode(Replay, garbled(Replay("s", 0, 1, 1, 2.5), due_s=5.0))


def test_what_a_document_of_the_first_format_leaves_out_has_its_default() -> None:
    intent = {"window": 4, "ranges": []}
    sealed = {"window": 4, "digest": "ab", "staged": []}
    for value, expected in (
        (intent, Intent(4, ())),
        (sealed, Sealed(4, "ab", ())),
        ({**sealed, "roots": None}, Sealed(4, "ab", ())),
    ):
        kind = type(expected)
        assert codec.decode(kind, written(kind.__name__, 1, value)) == expected


def test_a_replay_of_the_first_format_that_never_said_until_when_is_refused() -> None:
    waits = {"source": "s", "partition": 1, "offset": 2, "number": 1}
    with pytest.raises(ProtocolError, match="a Replay lacks delay_s"):
        codec.decode(Replay, written("Replay", 1, waits))


def test_an_attempt_that_does_not_say_how_many_slices_it_has_has_sixteen() -> None:
    """Releases that did not say it had no other number."""
    opened = {"id": {"execution": 1, "window": 2, "attempt": 3}, "roots": 4, "edges": []}
    assert codec.decode(Open, written("Open", 1, opened)) == Open(AttemptId(1, 2, 3), 4, (), 16)
