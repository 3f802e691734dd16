"""The decorators and the class form that user code is written with."""

from __future__ import annotations

import pytest

from millrace import Processor, migrates, row, spec_of, stateful, vectorized, where
from millrace.ddl import parse_schema, parse_type
from millrace.errors import TopologyError
from millrace.functions import FunctionKind


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
        (Dedup, FunctionKind.CLASS, (("word", "string"),), (("seen", "boolean"),)),
    ],
)
def test_spec_says_what_was_declared(target, kind, output, state):
    spec = spec_of(target)
    assert (spec.kind, spec.output, spec.state) == (kind, output, state)
    assert spec.target is target
    assert spec.keyed == (state is not None)


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


@row(output="a strnig")
def misspelt(row):
    return None


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
        (misspelt, "'strnig' is not known"),
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
