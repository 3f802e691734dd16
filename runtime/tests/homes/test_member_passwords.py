"""Passwords of members: what they are made of, and what a Secret says of them."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from millrace.homes.passwords import (
    ACKER_USER,
    DEFAULT_USER,
    accepted_in,
    digest,
    of_root_key,
    secret_data,
    shared,
)

ROOT = "r" * 48


def test_a_password_is_the_keyed_hash_of_uid_and_name():
    said = hmac.new(ROOT.encode(), b"uid-1/words-state-0", hashlib.sha256).hexdigest()
    assert of_root_key(ROOT, "uid-1")("words-state-0") == said
    assert (len(said), said.isalnum()) == (64, True)


def test_another_name_topology_or_root_has_another_password():
    found = {
        of_root_key(root, uid)(name)
        for root in (ROOT, "s" * 48)
        for uid in ("u", "v")
        for name in ("state-0", "state-1", "acker-0")
    }
    assert len(found) == 12


def test_those_who_share_one_have_the_same():
    assert {shared("p")("a"), shared("p")("b")} == {"p"}
    assert shared(None)("a") is None


def test_what_is_accepted_is_read_again_and_a_line_that_is_none_is_named():
    held = {"root": ROOT, "password": "p" * 40}
    found = list(accepted_in(secret_data("words", "u", held)["accepted"]))
    assert found[0] == (DEFAULT_USER, digest("p" * 40))
    ackers = [known for user, known in found if user == ACKER_USER]
    assert digest(of_root_key(ROOT, "u")("words-acker-63")) in ackers
    assert len(found) == 1 + len(ackers) == 65
    good = f"{ACKER_USER} {'0' * 64}"
    assert list(accepted_in("")) == []
    for bad in (
        "root " + "0" * 64,
        ACKER_USER,
        f"{ACKER_USER} {'0' * 63}",
        f"{good} nopass",
        "+@all",
    ):
        with pytest.raises(ValueError, match=r"^2$"):
            list(accepted_in(f"{good}\n{bad}\n"))


def test_no_members_password_is_taken_for_the_shared_one_when_its_root_key_goes():
    held = {"root": ROOT, "password": "p" * 40}
    held |= secret_data("words", "u", held)
    held["password"] = held["password"].partition("\n")[2]  # the shared one alone is removed
    held |= secret_data("words", "u", held)
    for root in ("s" * 48 + "\n" + ROOT, "s" * 48):
        held["root"] = root
        held |= secret_data("words", "u", held)
    assert DEFAULT_USER not in held["accepted"]
    known = {digest(of_root_key(ROOT, "u")(f"words-{who}-0")) for who in ("state", "acker")}
    assert not known & {found for _, found in accepted_in(held["accepted"])}


def test_a_secret_that_is_as_it_should_be_lacks_nothing():
    held = {"root": ROOT, "run-key": "k", "password": "p" * 40}
    made = secret_data("words", "u", held)
    assert {key for key in made if key.startswith("password-")} > {
        "password-words-state-0",
        "password-words-acker-0",
    }
    assert secret_data("words", "u", held | made) == {}
    assert secret_data("words", "u", {**held, **made, "accepted": ""}).keys() == {"accepted"}
