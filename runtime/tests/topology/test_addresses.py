"""Passwords in any part of an address, also a malformed one, are shown by nothing."""

from __future__ import annotations

import base64
import inspect
import json
import sys
import traceback
from pathlib import Path
from urllib.parse import quote, quote_plus, unquote, urlsplit

import pytest
import redis
import typer
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from millrace.addresses import (
    _SSL_OPTIONS,
    HIDDEN,
    hidden,
    redacted,
    redis_fault,
    shown_address,
    shown_value,
    without_password,
)
from millrace.cli import app
from millrace.errors import MillraceError, StateServerError
from millrace.sinks.redis import RedisSink
from millrace.state.client import StateAddress, StateClient
from millrace.topology.edits import classify
from millrace.topology.load import parse
from millrace.topology.model import StreamTopology
from millrace.topology.problems import InvalidTopologyError, Problem, shorten

HALVES = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=9, max_size=12).map("Zq".__add__)
"""Parts of a secret that stand nowhere by chance."""

SPECIAL = [*"/?#@:%[]&=;,!*'\"\\{}|^`~ \t\n", "://", "@/", "%2", "%zz", "ß", "\u2028"]
BETWEEN = st.sampled_from(["", *SPECIAL])

SECRETS = st.tuples(HALVES, BETWEEN, HALVES)

PLACES = [
    "redis://:{0}@host:6379",
    "redis://:{0}@host:6379/0?db=1",
    "redis://user:{0}@host:6379/0",
    "redis://{0}@host:6379",
    "redis://{0}:word@host:6379",
    "redis://host:6379?password={0}",
    "redis://host:6379/0?db=0&password={0}&protocol=2",
    "redis://host:6379?ssl_password={0}",
    "redis://host:6379?{0}",
    "redis://host:6379?{0}=1",
    "redis://host:6379#{0}",
    "redis://host:6379/{0}",
    "redis://host:{0}",
    "redis://:{0}",
    "redis://:{0}@",
    "redis://:{0}@@host:6379",
    "redis://a@b:{0}@host:6379",
    "redis://:{0}@ho st:6379",
    "redis://:{0}@[::1:6379",
    "redis:/:{0}@host:6379",
    "redis:{0}@host:6379",
    ":{0}@host:6379",
    "rediss://:{0}@host",
    "http://user:{0}@host/x",
    "unix://:{0}@/run/valkey.sock",
    "unix:///run/valkey.sock?password={0}",
    " redis://:{0}@host:6379",
    "REDIS://:{0}@host:6379",
]

FORMS = [
    lambda text: text,
    quote,
    lambda text: quote(text, safe=""),
    quote_plus,
    lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
]


@st.composite
def addresses(draw) -> tuple[str, list[str]]:
    """An address and all texts that would give its secret away."""
    parts = draw(SECRETS)
    form = draw(st.sampled_from(FORMS))
    secret = "".join(parts)
    written = form(secret)
    betrayals = [parts[0], parts[2], form(parts[0]), form(parts[2]), secret.encode().hex()]
    betrayals.append(base64.b64encode(secret.encode()).decode())
    place = draw(st.sampled_from(PLACES))
    # What stands behind the last @ is a host to everybody.
    assume("@" not in written or not place.endswith(":{0}"))
    return place.format(written), betrayals


def check(shown: str, betrayals: list[str], where: str) -> None:
    for text in betrayals:
        assert text not in shown, f"{where} shows {text}"


SPEC = {
    "sources": [{"name": "made", "generator": {"count": 1}}],
    "sinks": [{"name": "shown", "inputs": [{"from": "made"}], "console": {}}],
}


def document(**spec) -> dict:
    return {
        "apiVersion": "millrace.dev/v1alpha1",
        "kind": "StreamTopology",
        "metadata": {"name": "first"},
        "spec": {**SPEC, **spec},
    }


def documents(address: str) -> list[dict]:
    """Topologies with the address in all places where one may stand."""
    redis = {"url": address, "mode": "hash", "key": "a:{value}"}
    custom = {"class": "nowhere:Sink", "options": {"url": address, "deep": [{"to": address}]}}
    sink = {"name": "shown", "inputs": [{"from": "made"}]}
    return [
        document(stateServers={"url": address}),
        document(sinks=[{**sink, "redis": redis}]),
        document(sinks=[{**sink, "redis": {**redis, "mode": address}}]),
        document(sinks=[{**sink, "custom": custom}]),
        document(sinks=[{**sink, "files": {"path": "x", "format": address}}]),
        document(spark={"conf": {"spark.some.url": address}}),
        document(parallelism=address),
        document(window=address),
        document(tracking=[address]),
    ]


@settings(deadline=None)
@given(addresses())
def test_an_address_is_shown_without_its_secret(made):
    address, betrayals = made
    check(shown_address(address), betrayals, "shown_address")
    check(shown_value(address), betrayals, "shown_value")
    check(repr(hidden({"a": [{"url": address}]})), betrayals, "hidden")
    check(shorten(address), betrayals, "shorten")
    check(shorten({"url": [address]}), betrayals, "shorten")
    check(str(Problem("spec.x", address, "is wrong", "mend it")), betrayals, "Problem")
    check(str(redis_fault(address)), betrayals, "redis_fault")
    check(StateAddress("s", address, "r").shown, betrayals, "StateAddress")


@settings(deadline=None)
@given(addresses())
def test_errors_about_an_address_do_not_show_its_secret(made):
    address, betrayals = made
    for act in (
        lambda: without_password(address),
        lambda: StateClient(StateAddress("s", address, "r"), "uid").close(),
        lambda: RedisSink("s", {"url": address, "mode": "hash", "key": "k"}, Path()),
    ):
        try:
            made_of_it = act()
        except MillraceError as error:
            told = "".join(traceback.format_exception(error))
        else:
            told = made_of_it.shown_url if isinstance(made_of_it, RedisSink) else ""
        check(told, betrayals, "an error")


@settings(deadline=None)
@given(addresses())
@example(("redis://Zq000000000:Zq000000000@host:6379", []))
def test_an_address_that_travels_has_lost_its_password(made):
    address, _ = made
    if redis_fault(address) is None:
        bare, password = without_password(address)
        assert redis_fault(bare) in (None, "is an address with a user and no password")
        # A user whose name is the password has to be named all the same.
        name = unquote(urlsplit(bare).username or "")
        if password is not None and len(password) > 8 and password != name:
            check(bare, [password, *(form(password) for form in FORMS)], "the bare address")


@settings(max_examples=50, deadline=None)
@given(addresses())
def test_validation_does_not_show_secrets(made):
    address, betrayals = made
    for one in documents(address):
        for text in (json.dumps(one), "{" + json.dumps(one)):
            try:
                parse(text, (), Path(), import_code=False)
            except InvalidTopologyError as error:
                check(str(error), betrayals, "a problem")
    for setting in (
        f"spec.stateServers.url={address}",
        f"spec.stateServers.url:{address}",
        f"spec.nosuch[{address}",
        f"spec.window={address}",
    ):
        try:
            parse(json.dumps(document()), (setting,), Path(), import_code=False)
        except InvalidTopologyError as error:
            check(str(error), betrayals, "a problem of --set")


@settings(deadline=None)
@given(addresses(), addresses())
def test_edits_do_not_show_secrets(old, new):
    for before, after in zip(documents(old[0])[:2], documents(new[0])[:2], strict=True):
        edits = classify(
            StreamTopology.model_validate(before), StreamTopology.model_validate(after)
        )
        for edit in edits:
            check(str(edit), [*old[1], *new[1]], "an edit")


@settings(deadline=None)
@given(SECRETS)
@example(("Zqabcdefghi", "", "Zqabcdefghi"))
def test_values_under_the_name_of_a_secret_are_not_shown(parts):
    secret = "".join(parts)
    for name in ("password", "dbPassword", "s3.secret.key", "token", "api_key", "ACCESS-KEY"):
        check(shorten(secret, f"spec.spark.conf[{name}]"), [*parts[::2]], "shorten")
        check(shorten({"options": {name: [secret]}}), [*parts[::2]], "shorten")
        if parts[1].isalnum() or not parts[1]:
            check(redacted(f"cannot open with {name}={secret}, sorry"), [secret], "redacted")


@settings(deadline=None)
@given(addresses())
def test_a_sentence_with_an_address_does_not_show_its_secret(made):
    address, betrayals = made
    if "://" in address and not any(c.isspace() or c in "\"'" for c in address.strip()):
        check(redacted(f"Error 111 connecting to {address}. Refused."), betrayals, "redacted")


@pytest.mark.parametrize("command", ["validate", "describe"])
def test_the_commands_do_not_show_secrets(tmp_path, command, monkeypatch, capsys):
    secret = "Zqhunter2hunter2"
    # Made once: that takes longer than all else of a command that is refused.
    made = typer.main.get_command(app.build_app())
    monkeypatch.setattr(app, "build_app", lambda: made)
    for place in PLACES:
        for number, one in enumerate(documents(place.format(secret))):
            file = tmp_path / f"{number}.yaml"
            file.write_text(json.dumps(one))
            monkeypatch.setattr(sys, "argv", ["millrace", command, str(file), "--no-code"])
            with pytest.raises(SystemExit) as ended:
                app.main()
            told = "".join(capsys.readouterr())
            assert secret not in told
            assert ended.value.code in (0, 3), told


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("redis://localhost", "redis://localhost"),
        ("rediss://user:pw@host:1", f"rediss://:{HIDDEN}@host:1"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("redis://host:1?db=0", f"redis://host:1?{HIDDEN}"),
        ("unix:///run/valkey.sock", "unix:///run/valkey.sock"),
        ("hdfs://nn:8020/a/b", "hdfs://nn:8020/a/b"),
        ("localhost:6379", "localhost:6379"),
        ("redis://:a/b@host:1", f"redis://{HIDDEN}"),
        ("what is this", HIDDEN),
    ],
)
def test_what_is_no_secret_is_shown(address, shown):
    assert shown_address(address) == shown


def test_other_texts_stay_as_they_are():
    for text in ("texts/*.txt", "a: b", "spark.sql.shuffle.partitions=2", "author=me", "a@b.c"):
        assert redacted(text) == text


@pytest.mark.parametrize(
    "address",
    [
        "redis://localhost",
        "redis://localhost:6379/0",
        "redis://:p%40w@host:6379",
        "rediss://user:pw@host:6379/1?ssl_cert_reqs=none&protocol=2",
        "redis://host?password=pw",
        "unix:///run/valkey.sock?db=0",
        "redis://[::1]:6379",
    ],
)
def test_addresses_that_are_right_have_no_fault(address):
    assert redis_fault(address) is None


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        ("rediss://host?ssl_ca=/x", "is an address with an option that is not known"),
        ("rediss://host?ssl_cafile=/x", "is an address with an option that is not known"),
        ("redis://host?ssl_ca_certs=/x", "is an address without TLS that has an option of it"),
        ("redis://user@host", "is an address with a user and no password"),
    ],
)
def test_a_slip_in_an_address_is_named(address, fault):
    assert redis_fault(address) == fault


def test_options_of_tls_are_those_of_the_client():
    """One that it does not know would be an error of the first connection."""
    known = inspect.signature(redis.SSLConnection.__init__).parameters
    for option in _SSL_OPTIONS:
        assert option in known


def test_the_remedy_offers_no_password_in_an_address_beside_one_that_is_named_apart():
    with pytest.raises(StateServerError) as caught:
        without_password("redis://:pw@host", apart=True)
    assert ":password@" not in str(caught.value)
    assert "redis://user@host:port" in str(caught.value)


def test_the_password_of_a_query_is_taken_out():
    bare, password = without_password("redis://h:1/0?db=3&password=p%40w&protocol=2")
    assert (bare, password) == ("redis://h:1/0?db=3&protocol=2", "p@w")


def test_yaml_that_begins_like_a_password_without_quotes_is_not_shown():
    text = json.dumps(document()).replace('"generator"', "*Zqhunter2hunter2, x")
    with pytest.raises(InvalidTopologyError) as caught:
        parse(text, (), Path(), import_code=False)
    assert "Zqhunter2" not in str(caught.value)
