"""Which password each state server and each acker has: one of its own, made of a
*root key*.

The password of a member is HMAC-SHA256(root key, uid/name) in hexadecimal digits. So whoever
has the root key (supervisor, driver, operator) knows all of them, and a member that knows its own
knows no other. The name in the view is all that refers to it: no password is in a view, and none in
what is proposed.

On one machine the root key is a file of the work folder. On a cluster the topology's Secret holds

===================  ======================================================================
``root``             the root key: the first line is used, the others are accepted too
``password-<name>``  of each state server and acker that there may be, a line for each root key
``accepted``         what state servers accept beside their own, as digests: a line has the
                     user (``default`` or ``ACKER_USER``) and the SHA-256 of a password
``password``         what pods of a release know that has no root key: the first line is
                     the password that they share, behind it are those of all members
===================  ======================================================================

Passwords that are shared are accepted as long as they are in ``password``: a driver of an older
release knows no other, and neither does one that an older operator starts. A state server of an
older release accepts all lines of that key, so that it takes the passwords of members, too. One
that knows ``accepted`` holds its own password alone. Pure functions; nothing is shown or logged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping

from millrace.homes import pods
from millrace.homes.pods import Role
from millrace.topology.members import MOST_MEMBERS

PasswordOf = Callable[[str], str | None]
"""From the name of a state server or acker to its password; None: it asks for none."""

ACKER_USER = "acker"
"""As whom ackers are known to a state server: it lets them use the ack log alone."""

DEFAULT_USER = "default"
"""As whom everybody else is."""


def of_root_key(root_key: str, uid: str) -> PasswordOf:
    """Each member its own: 64 hexadecimal digits."""

    def password_of(name: str) -> str:
        return hmac.new(root_key.encode(), f"{uid}/{name}".encode(), hashlib.sha256).hexdigest()

    return password_of


def shared(password: str | None) -> PasswordOf:
    """All the same: of a server of the user's own, or of a release that knows no root key."""
    return lambda _: password


def digest(password: str) -> str:
    """What a password is known again by; those of members cannot be guessed from it."""
    return hashlib.sha256(password.encode()).hexdigest()


def lines(text: str) -> list[str]:
    """The passwords of a key, the one that is used first."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def accepted_in(text: str) -> Iterator[tuple[str, str]]:
    """User and digest of each line of ``accepted``. Raises ``ValueError`` with the number of a
    line that is none."""
    for number, line in enumerate(text.splitlines(), 1):
        user, _, known = line.strip().partition(" ")
        if not line.strip():
            continue
        hexadecimal = len(known) == 64 and set(known) <= set("0123456789abcdef")
        if user not in (DEFAULT_USER, ACKER_USER) or not hexadecimal:
            raise ValueError(str(number))
        yield user, known


def secret_data(topology: str, uid: str, held: Mapping[str, str]) -> dict[str, str]:
    """What the Secret of a topology has to hold that it does not, by key; empty where it is as it
    should be. ``held`` is what it holds, ``root`` among it.

    A key ``password`` that somebody has removed stays away, and with it what was shared.
    """
    known = [of_root_key(root_key, uid) for root_key in lines(held[pods.ROOT_KEY])]
    servers = [pods.pod_name(topology, Role.STATE_SERVER, n) for n in range(MOST_MEMBERS)]
    ackers = [pods.pod_name(topology, Role.ACKER, n) for n in range(MOST_MEMBERS)]
    own = {name: _of_all(known, name) for name in (*servers, *ackers)}
    wanted = {pods.password_key(name): _text(passwords) for name, passwords in own.items()}
    members = [password for passwords in own.values() for password in passwords]
    # Of a root key that is gone, too: in the step that removes it they are still there.
    before = [one for name in own for one in lines(held.get(pods.password_key(name), ""))]
    used = _shared(held, frozenset((*members, *before)))
    if pods.PASSWORD_KEY in held:
        wanted[pods.PASSWORD_KEY] = _text([*used, *members])
    digests = [f"{DEFAULT_USER} {digest(password)}" for password in used]
    digests += [f"{ACKER_USER} {digest(one)}" for name in ackers for one in own[name]]
    wanted[pods.ACCEPTED_KEY] = _text(digests)
    return {key: text for key, text in wanted.items() if held.get(key) != text}


def _shared(held: Mapping[str, str], members: frozenset[str]) -> list[str]:
    """Passwords of the key ``password`` that are no member's, of whatever root key. All lines
    are, before there was one; later those that were before, and the first one, which may be new."""
    found = [one for one in lines(held.get(pods.PASSWORD_KEY, "")) if one not in members]
    before = held.get(pods.ACCEPTED_KEY)
    if before is None:
        return found
    known = {f"{DEFAULT_USER} {digest(one)}": one for one in found}
    kept = [known[line] for line in lines(before) if line in known]
    return list(dict.fromkeys([*found[:1], *kept]))


def _of_all(known: Iterable[PasswordOf], name: str) -> list[str]:
    return [password for of in known if (password := of(name)) is not None]


def _text(passwords: Iterable[str]) -> str:
    return "".join(f"{one}\n" for one in passwords)
