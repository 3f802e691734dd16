"""The decorators and the class form that user code is written with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from millrace import (
    GroupedBatch,
    Processor,
    grouped,
    makes,
    migrates,
    restores,
    row,
    spec_of,
    stateful,
    vectorized,
    where,
)
from millrace.ddl import parse_schema, parse_type
from millrace.errors import TopologyError
from millrace.functions import FunctionKind

GUIDE = Path(__file__).parents[2] / "docs" / "code.md"


@row(output="word string")
def split(line):
    for word in line["value"].split():
        yield {"word": word}


@vectorized(output="word string, n long")
def split_batch(batch):
    return batch, []


@where
def is_long(line):
    return len(line["value"]) > 3


@stateful(output="word string, n long", state="n long, seen array<string>")
def count(line, state):
    return None


@grouped(output="word string", state="n long")
def count_many(batch, state):
    return {"n": batch.counts}


class Dedup(Processor):
    output = "word string"
    state = "seen boolean"

    def process(self, row, out):
        out.emit(row)


def test_a_decorated_function_stays_callable():
    assert list(split({"value": "a b"})) == [{"word": "a"}, {"word": "b"}]
    assert is_long({"value": "abcd"}) is True


@pytest.mark.parametrize(
    ("target", "kind", "output", "state"),
    [
        (split, FunctionKind.ROW, (("word", "string"),), None),
        (split_batch, FunctionKind.VECTORIZED, (("word", "string"), ("n", "long")), None),
        (is_long, FunctionKind.WHERE, None, None),
        (
            count,
            FunctionKind.STATEFUL,
            (("word", "string"), ("n", "long")),
            (("n", "long"), ("seen", "array<string>")),
        ),
        (count_many, FunctionKind.GROUPED, (("word", "string"),), (("n", "long"),)),
        (Dedup, FunctionKind.CLASS, (("word", "string"),), (("seen", "boolean"),)),
    ],
)
def test_spec_says_what_was_declared(target, kind, output, state):
    spec = spec_of(target)
    assert (spec.kind, spec.output, spec.state) == (kind, output, state)
    assert spec.target is target
    assert spec.keyed == (state is not None)


def test_a_batch_by_keys_says_where_the_rows_of_each_lie():
    rows = pa.record_batch({"word": ["b", "b", "b", "a"]})
    keys = pa.record_batch({"word": ["b", "a"]})
    batch = GroupedBatch(rows, keys, np.array([0, 3, 4]))
    assert batch.counts.tolist() == [3, 1]
    assert batch.last.tolist() == [2, 3]
    assert batch.key_of_row.tolist() == [0, 0, 0, 1]
    assert count_many(batch, None)["n"] is batch.counts


class NoOutput(Processor):
    def process(self, row, out):
        pass


class NoProcess(Processor):
    output = "a string"


class NeedsArguments(Processor):
    output = "a string"

    def __init__(self, size):
        self.size = size

    def process(self, row, out):
        pass


class WrongProcess(Processor):
    output = "a string"

    def process(self, row):
        pass


@row(output="a string")
def takes_two(row, other):
    return None


@grouped(output="a string", state="n long")
def takes_one(batch):
    return None


@row(output="a strnig")
def misspelt(row):
    return None


@row(output="a string")
async def awaited(row):
    return None


@stateful(output="a string", state="n long")
async def awaited_rows(row, state):
    yield {"a": "b"}


@where
async def awaited_where(row):
    return False


@where
def yielding_where(row):
    yield False


@grouped(output="a string", state="n long")
def yielding_groups(batch, state):
    yield state


class Yields(Processor):
    output = "a string"

    def process(self, row, out):
        yield {"a": "b"}


class Awaited(Processor):
    output = "a string"

    async def process(self, row, out):
        out.emit({"a": "b"})


class YieldsAtTheEnd(Processor):
    output = "a string"

    def process(self, row, out):
        out.emit({"a": "b"})

    def finish(self, out):
        yield {"a": "b"}


def plain(row):
    return None


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (plain, "decorate"),
        (42, "decorate"),
        (int, "derive from millrace.Processor"),
        (NoOutput, "class attribute output"),
        (NoProcess, "needs the method process"),
        (NeedsArguments, "without arguments"),
        (WrongProcess, "(row, out)"),
        (takes_two, "wrong signature"),
        (takes_one, "wrong signature for @grouped; it is called with (batch, state)"),
        (misspelt, "'strnig' is not known"),
        (awaited, "awaited is async, and nothing awaits it; write it with def"),
        (awaited_rows, "awaited_rows is async"),
        (awaited_where, "awaited_where is async"),
        (yielding_where, "yielding_where yields, and nothing takes what it yields; return True or"),
        (yielding_groups, "yielding_groups yields"),
        (Yields, "Yields.process yields, and nothing takes what it yields; call out.emit for each"),
        (Awaited, "Awaited.process is async"),
        (YieldsAtTheEnd, "YieldsAtTheEnd.finish yields"),
    ],
)
def test_what_cannot_be_used_is_named_with_a_remedy(target, told):
    with pytest.raises(TopologyError) as caught:
        spec_of(target)
    assert told in str(caught.value)


def test_a_decorator_without_columns_says_so_where_it_stands():
    with pytest.raises(TopologyError, match="output="):

        @row
        def forgot(row):
            return None


def test_schemas_are_read_with_aliases_and_nesting():
    text = "a string, `b c` ARRAY<array<bigint>>, n: integer,x double , t timestamp"
    columns = parse_schema(text)
    assert columns == [
        ("a", "string"),
        ("b c", "array<array<long>>"),
        ("n", "int"),
        ("x", "double"),
        ("t", "timestamp"),
    ]
    assert parse_type(" Bool ") == "boolean"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no column"),
        ("a", "not a column"),
        ("a string,", "ends with a comma"),
        ("a string,,b long", "empty column"),
        ("a string, a long", "twice"),
        ("__mr_id long", "reserved"),
        ("a map<string>", "not known"),
        ("a array<>", "not known"),
    ],
)
def test_a_schema_that_cannot_be_read_says_why(text, told):
    with pytest.raises(TopologyError, match=told):
        parse_schema(text)


def test_migrations_belong_to_what_they_are_declared_for():
    @stateful(output="n long", state="n long, last string")
    def kept(line, state):
        return None

    @migrates(kept, state="n long")
    @migrates(kept, state="m bigint, n long")
    def older(state):
        return {"n": state["n"]}

    assert older({"n": 3}) == {"n": 3}
    found = spec_of(kept).migrations
    assert [(one.state, one.function) for one in found] == [
        ((("m", "long"), ("n", "long")), older),
        ((("n", "long"),), older),
    ]
    assert spec_of(count).migrations == ()

    class Base(Processor):
        output = "n long"
        state = "n long"

        def process(self, row, out):
            pass

    class Derived(Base):
        state = "n long, last string"

    migrates(Derived, state="n long")(older)
    assert [one.function for one in spec_of(Derived).migrations] == [older]
    assert spec_of(Base).migrations == ()


class Tally:
    """A form of state that is no dict."""

    def __init__(self, n: int) -> None:
        self.n = n


def formed():
    @stateful(output="n long", state="n long, note string")
    def counts(line, tally):
        for _ in range(2):
            tally.n += line["by"]
            yield {"n": tally.n}

    @restores(counts)
    def tally_of(columns):
        return Tally(columns["n"] or 0)

    @makes(counts)
    def columns_of(tally):
        if tally.n == 13:
            return [13]
        return {"n": tally.n} if tally.n else None

    return counts, tally_of, columns_of


def test_state_may_have_a_form_of_its_own():
    counts, tally_of, columns_of = formed()
    assert (tally_of({"n": 3}).n, columns_of(Tally(4))) == (3, {"n": 4})
    call = spec_of(counts).target
    state = {"n": None, "note": "gone"}
    # What it puts out lazily has changed the state by the time that is kept.
    assert list(call({"by": 2}, state)) == [{"n": 2}, {"n": 4}]
    assert state == {"n": 4}
    assert list(call({"by": -2}, state)) == [{"n": 2}, {"n": 0}]
    assert state == {}
    with pytest.raises(TypeError, match=r"columns_of gave a list, not a dict"):
        call({"by": 6.5}, {"n": None, "note": None})
    # The function itself is tested as what it is.
    assert next(counts({"by": 1}, Tally(1))) == {"n": 2}


class Lazily:
    """Rows that are made whenever somebody asks for them."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally

    def __iter__(self):
        self.tally.n += 1
        yield {"n": self.tally.n}


def test_what_is_made_when_it_is_asked_for_changes_the_state_that_is_kept():
    @stateful(output="n long", state="n long")
    def counts(line, tally):
        return Lazily(tally)

    restores(counts)(lambda columns: Tally(columns["n"] or 0))
    makes(counts)(lambda tally: {"n": tally.n})
    call = spec_of(counts).target
    state = {"n": None}
    assert [row["n"] for _ in range(3) for row in call({}, state)] == [1, 2, 3]
    assert state == {"n": 3}


def test_the_documents_example_keeps_a_mean():
    (example,) = [text for text in GUIDE.read_text().split("```") if "@restores(" in text]
    names: dict[str, object] = {"__name__": "example"}
    exec(example.removeprefix("python\n"), names)
    call, state = spec_of(names["average"]).target, {"n": None, "total": None}
    assert call({"word": "a", "size": 1.0}, state) == {"word": "a", "mean": 1.0}
    assert call({"word": "a", "size": 2.0}, state) == {"word": "a", "mean": 1.5}
    assert state == {"n": 2, "total": 3.0}


def only(hook):
    _, tally_of, _ = formed()

    @stateful(output="n long", state="n long")
    def other(line, tally):
        return None

    hook(other)(tally_of)
    return other


def unformed(target):
    restores(target)(dict)
    return target


def plain_row():
    @row(output="n long")
    def plain(line):
        return None

    return plain


def plain_grouped():
    @grouped(output="n long", state="n long")
    def plain(batch, state):
        return None

    return plain


def class_without_state():
    class Passing(Processor):
        output = "n long"

        def process(self, row, out):
            pass

    return Passing


def class_with_state():
    class Counting(Processor):
        output = "n long"
        state = "n long"

        def __init__(self):
            self.calls = []

        def open(self, context):
            self.calls.append(context)

        def process(self, row, out):
            out.state.n += row["by"]
            if row["by"] == 7:
                out.fail("seven")
            out.emit({"n": out.state.n}, anchors=[row])

        def finish(self, out):
            out.emit({"n": len(self.calls)})

        def close(self):
            self.calls.append("closed")

    return Counting


class Out:
    """What a class is given, with the columns of one key."""

    def __init__(self, **state):
        self.state = state
        self.sent = []

    def emit(self, values, anchors=None):
        self.sent.append((values, anchors))

    def fail(self, reason):
        raise RuntimeError(reason)


def test_a_class_may_have_its_state_in_a_form_of_its_own():
    counting = class_with_state()
    restores(counting)(lambda columns: Tally(columns["n"] or 0))
    makes(counting)(lambda tally: {"n": tally.n} if tally.n else None)
    made = spec_of(counting).target()
    made.open("here")
    out, line = Out(n=None), {"by": 2}
    made.process(line, out)
    assert (out.state, out.sent) == ({"n": 2}, [({"n": 2}, [line])])
    assert out.sent[0][1][0] is line
    # What fails has changed nothing.
    with pytest.raises(RuntimeError, match="seven"):
        made.process({"by": 7}, out)
    assert out.state == {"n": 2}
    made.process({"by": -2}, out)
    assert out.state == {}
    made.finish(out)
    made.close()
    assert out.sent[-1] == ({"n": 1}, None)
    # Each task has an instance of its own.
    fresh = spec_of(counting).target()
    fresh.finish(out)
    assert out.sent[-1] == ({"n": 0}, None)


def test_a_class_has_the_hooks_of_the_class_that_it_is_derived_from_or_its_own():
    base = class_with_state()
    restores(base)(lambda columns: Tally(columns["n"] or 0))
    makes(base)(lambda tally: {"n": tally.n})

    class Inherits(base):
        pass

    class Own(base):
        pass

    restores(Own)(lambda columns: Tally(columns["n"] or 100))
    makes(Own)(lambda tally: {"n": tally.n})
    ends = []
    for target in (base, Inherits, Own):
        out = Out(n=None)
        spec_of(target).target().process({"by": 1}, out)
        ends.append(out.state)
    assert ends == [{"n": 1}, {"n": 1}, {"n": 101}]


def badly_called():
    @stateful(output="n long", state="n long")
    def other(line, tally):
        return None

    restores(other)(lambda columns, more: None)
    makes(other)(dict)
    return other


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (only(restores), "nothing makes it; write the other function and mark it with @makes"),
        (only(makes), "nothing restores it; write the other function"),
        (unformed(plain_row()), "plain, which keeps no state; remove it"),
        (unformed(plain_grouped()), "plain, which has the state of many keys as arrays: there"),
        (unformed(class_without_state()), "Passing, which keeps no state; remove it"),
        (unformed(class_with_state()), "nothing makes it; write the other function"),
        (badly_called(), r"which restores a state, has the wrong signature"),
    ],
)
def test_hooks_that_cannot_be_used_say_why(target, told):
    with pytest.raises(TopologyError, match=told):
        spec_of(target)


async def later(columns):
    return None


@pytest.mark.parametrize("hook", [restores, makes])
def test_a_hook_that_nothing_would_await_is_refused(hook):
    target, other = only(restores), makes
    if hook is restores:
        target, other = only(makes), restores
    other(target)(later)
    with pytest.raises(TopologyError, match="later is async"):
        spec_of(target)


def test_a_class_may_be_a_hook_whatever_calls_of_its_objects_are():
    class Lazy(dict):
        def __call__(self):
            yield self

    target = only(restores)
    makes(target)(Lazy)
    assert spec_of(target).state is not None


@pytest.mark.parametrize("hook", [restores, makes])
def test_a_second_hook_is_refused(hook):
    with pytest.raises(TopologyError, match=f"second function that {hook.__name__} the state of"):
        hook(formed()[0])(dict)


def migrated(*states, kept="n long, last string", function=dict):
    @stateful(output="n long", state=kept)
    def counts(line, state):
        return None

    for state in states:
        migrates(counts, state=state)(function)
    return counts


def stateless():
    @row(output="n long")
    def plain(line):
        return None

    migrates(plain, state="n long")(dict)
    return plain


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (migrated("n long", "n bigint"), r"is the second from \(n bigint\); keep one"),
        (migrated("n long, last string"), "from the columns that are declared today"),
        (migrated("n lon"), "lon"),
        (migrated("n long", function=int.__add__), r"wrong signature; it is called with \(state\)"),
        (stateless(), "there is no state; remove it"),
    ],
)
def test_a_migration_that_can_never_be_called_is_named(target, told):
    with pytest.raises(TopologyError, match=told):
        spec_of(target)
