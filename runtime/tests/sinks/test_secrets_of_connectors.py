"""Values of Secrets are read where a source or sink is made, and stand nowhere else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from millrace.connector import options_of
from millrace.errors import MillraceError, SinkError, SourceError
from millrace.modes import SECRETS_VARIABLE
from millrace.sinks import SinkSpec, make_sink
from millrace.sources import SourceSpec, make_source
from millrace.topology import model
from millrace.topology.load import parse
from millrace.topology.problems import InvalidTopologyError
from millrace.topology.secretrefs import SecretRef, references, variable_of

VALUE = "s3cr3t-of-the-store"
REF = {"secretRef": {"name": "my-store", "key": "pass.word"}}
VARIABLE = "MILLRACE_SECRET_MY_STORE__PASS_WORD"


def sink(**redis: Any) -> model.Sink:
    kind = {"url": "redis://h:1", "mode": "stream", "stream": "s", "password": REF, **redis}
    return model.Sink.model_validate({"name": "out", "inputs": [{"from": "a"}], "redis": kind})


def source(options: dict[str, Any]) -> model.Source:
    custom = {"class": "words:Lines", "options": options}
    return model.Source.model_validate({"name": "lines", "custom": custom})


@pytest.fixture(autouse=True)
def no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SECRETS_VARIABLE, raising=False)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(params=["environment", "folder"])
def given(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], None]:
    """Sets the value as one machine has it, and as a pod has it."""

    def give(value: str) -> None:
        if request.param == "environment":
            monkeypatch.setenv(VARIABLE, value)
            return
        file = tmp_path / "secrets" / "my-store" / "pass.word"
        file.parent.mkdir(parents=True)
        file.write_text(value)
        monkeypatch.setenv(SECRETS_VARIABLE, str(tmp_path / "secrets"))

    return give


def test_a_sink_gets_the_value_and_its_spec_the_reference(given, tmp_path: Path):
    given(VALUE)
    spec = SinkSpec.of(sink(), tmp_path)
    assert make_sink(spec).options["password"] == VALUE
    for kept in (json.dumps(asdict(spec)), repr(spec), pickle.dumps(spec).decode("latin-1")):
        assert VALUE not in kept
        assert "my-store" in kept
    assert VALUE not in sink().model_dump_json(by_alias=True)


def test_options_of_a_class_hold_values_wherever_references_stood(given, tmp_path: Path):
    given(VALUE)
    options = {"tokens": [{"first": REF}], "plain": {"secretRef": "no mapping", "more": 1}}
    spec = SourceSpec.of(source(options), tmp_path)
    assert options_of(spec, "source", SourceError) == {
        "tokens": [{"first": VALUE}],
        "plain": {"secretRef": "no mapping", "more": 1},
    }


@pytest.mark.parametrize("value", [None, ""])
def test_a_variable_that_is_missing_is_named_with_the_key(monkeypatch, tmp_path: Path, value):
    if value is not None:
        monkeypatch.setenv(VARIABLE, value)
    with pytest.raises(SinkError) as caught:
        make_sink(SinkSpec.of(sink(), tmp_path))
    for said in ("sink 'out'", "password", "'pass.word'", "'my-store'", VARIABLE, "set it"):
        assert said in str(caught.value)


@pytest.mark.parametrize(
    ("data", "said"),
    [(None, "does not exist"), (b"", "is empty"), (b"\xff\xfes3cr3t", "is no UTF-8 text")],
)
def test_a_key_that_a_pod_does_not_have_is_named(monkeypatch, tmp_path: Path, data, said):
    monkeypatch.setenv(SECRETS_VARIABLE, str(tmp_path))
    monkeypatch.setenv(VARIABLE, VALUE)  # a pod goes by what is mounted alone
    if data is not None:
        (tmp_path / "my-store").mkdir()
        (tmp_path / "my-store" / "pass.word").write_bytes(data)
    with pytest.raises(SourceError) as caught:
        make_source(SourceSpec.of(source({"token": REF}), tmp_path))
    for text in ("source 'lines'", "token", "'pass.word'", "'my-store'", said):
        assert text in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_the_end_of_a_line_belongs_to_no_value(monkeypatch, tmp_path: Path):
    monkeypatch.setenv(SECRETS_VARIABLE, str(tmp_path))
    (tmp_path / "my-store").mkdir()
    (tmp_path / "my-store" / "pass.word").write_text(f"{VALUE}\n")
    assert make_sink(SinkSpec.of(sink(), tmp_path)).options["password"] == VALUE


def test_an_address_names_its_user_where_the_password_stands_apart(given, tmp_path: Path):
    given(VALUE)
    found = make_sink(SinkSpec.of(sink(url="redis://reader@h:1"), tmp_path))
    connection = vars(found)["_password"], found.url
    assert connection == (VALUE, "redis://reader@h:1")
    settings = found._client.connection_pool.connection_kwargs
    assert (settings["username"], settings["password"]) == ("reader", VALUE)
    with pytest.raises(MillraceError, match="beside the one that is declared apart"):
        make_sink(SinkSpec.of(sink(url="redis://:other@h:1"), tmp_path))


def topology(options: Any, **redis: Any) -> str:
    spec = {
        "sources": [{"name": "lines", "custom": {"class": "words:L", "options": options}}],
        "sinks": [
            {
                "name": "out",
                "inputs": [{"from": "lines"}],
                "redis": {"url": "redis://h:1", "mode": "stream", "stream": "s", **redis},
            }
        ],
    }
    whole = {"apiVersion": "millrace.dev/v1alpha1", "kind": "StreamTopology"}
    return json.dumps({**whole, "metadata": {"name": "words"}, "spec": spec})


@pytest.mark.parametrize(
    ("options", "redis", "path", "said"),
    [
        (
            {"token": {"secretRef": {"name": "a"}}},
            {},
            "spec.sources[0].custom.options.token",
            "is no reference to a Secret",
        ),
        (
            {"list": [{"secretRef": "a"}]},
            {},
            "spec.sources[0].custom.options.list[0]",
            "is no reference to a Secret",
        ),
        (
            {},
            {"password": {"secretRef": {"name": "Store", "key": "p"}}},
            "spec.sinks[0].redis.password.secretRef.name",
            "cannot name an object of Kubernetes",
        ),
        ({}, {"password": "plain"}, "spec.sinks[0].redis.password", "is no mapping"),
        (
            {},
            {"password": REF, "url": "redis://:other@h:1"},
            "spec.sinks[0].redis.url",
            "beside the one that is declared apart",
        ),
        (
            {"token": {"secretRef": {"name": "my.store", "key": "pass-word"}}},
            {"password": REF},
            "spec.sinks[0].redis.password",
            f"is read from {VARIABLE} on one machine",
        ),
    ],
)
def test_what_is_wrong_with_a_reference_is_said_at_its_place(options, redis, path, said):
    with pytest.raises(InvalidTopologyError) as caught:
        parse(topology(options, **redis), import_code=False)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert said in problem.message
    assert "plain" not in str(problem) or path != "spec.sinks[0].redis.password"


def test_references_are_found_with_their_paths():
    document = {"a": [REF, {"b": REF}], "c": {"secretRef": {}}}
    found = dict(references(document))
    ref = SecretRef(name="my-store", key="pass.word")
    assert found == {("a", 0): ref, ("a", 1, "b"): ref, ("c",): None}
    assert variable_of(ref) == VARIABLE


def test_one_key_may_be_referred_to_twice():
    parsed = parse(topology({"token": REF}, password=REF), import_code=False)
    assert parsed.spec.sinks[0].settings.password.secret_ref.name == "my-store"
