"""Addresses of servers, and what of a value may be shown: passwords never.

A password may stand anywhere in an address, also in one that is malformed, where nobody can tell
where it ends. So what is shown is not an address with something taken out, but the parts of which
it is certain that they are no password.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from millrace.errors import StateServerError

HIDDEN = "***"

OWN_KEYS = "millrace:"
"""How keys of a Redis-protocol server begin that are Millrace's own: no row is written there."""

_LONGEST, _DEEPEST = 2000, 20

_WITH_PASSWORD = (
    "write redis://host:port, redis://:password@host:port or redis://user:password@host:port, with "
    "%XX for /?#@ in a password, or rediss:// and ssl_ca_certs, ssl_certfile or ssl_keyfile"
)
_APART = (
    "write redis://host:port or redis://user@host:port, the password being named apart, or "
    "rediss:// and ssl_ca_certs, ssl_certfile or ssl_keyfile"
)

_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]{0,20})://")
_PLACE = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]*)(?P<port>:\d{1,5})?"
    r"(?P<path>/[^?#]*)?(?P<rest>[?#].*)?",
    re.DOTALL,
)
_LOCAL = ("file", "local")
_REDIS = ("redis", "rediss")
_DATABASE = re.compile(r"/\d{0,5}")

_WORDS = (
    r"passw|passphrase|pwd|secret|token|credential|api[._-]?key|access[._-]?key|private[._-]?key"
)
_SENSITIVE = re.compile(_WORDS, re.IGNORECASE)
_ASSIGNED = re.compile(
    rf"""([\w.-]*(?:{_WORDS})[\w.-]*["'\]]?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;&"']+)""",
    re.IGNORECASE,
)
_WITH_USER = re.compile(r"://.*@", re.DOTALL)  # greedy: to the last of them
_USER = re.compile(r":(?!//:\*\*\*@)[^\s]*@")
_ANY_USER = re.compile(r":.*@", re.DOTALL)
_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s\"']*?(?=[).,;:]*(?:[\s\"']|$))")

_OPTIONS = {
    *("db", "username", "password", "protocol", "client_name", "max_connections"),
    *("health_check_interval", "retry_on_timeout"),
    *("socket_timeout", "socket_connect_timeout", "socket_keepalive"),
}
_SSL_FILES = ("ssl_ca_certs", "ssl_ca_path", "ssl_certfile", "ssl_keyfile")
_SSL_OPTIONS = {
    *_SSL_FILES,
    *("ssl_ca_data", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers", "ssl_min_version"),
    *("ssl_include_verify_flags", "ssl_exclude_verify_flags"),
    *("ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
}


def is_sensitive(name: str) -> bool:
    """Whether what has such a name is not to be shown."""
    return _SENSITIVE.search(name) is not None


def shown_address(address: str) -> str:
    """An address for people: scheme, host, port and path as far as they are no password."""
    found = _SCHEME.match(address)
    scheme = found[1].lower() if found else ""
    rest = address[found.end() :] if found else address
    before, at, after = rest.rpartition("@")
    place = _PLACE.fullmatch(after)
    if place is None or any(c in before for c in "/?#") or (not scheme and not place["port"]):
        return f"{scheme}://{HIDDEN}" if scheme else HIDDEN
    path = place["path"] or ""
    if scheme in _REDIS and not _DATABASE.fullmatch(path):
        path = f"/{HIDDEN}" if path else ""
    parts = [
        f"{scheme}://" if scheme else "",
        f":{HIDDEN}@" if at else "",
        place["host"],
        place["port"] or "",
        path,
        f"?{HIDDEN}" if place["rest"] else "",
    ]
    return "".join(parts)


def place_of(address: str) -> str:
    """The same without a word of users."""
    return shown_address(address).replace(f":{HIDDEN}@", "")


def has_password(text: str) -> bool:
    """Whether a text is an address with a password in it."""
    if _SCHEME.match(text) is None:
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.password) or bool(dict(parse_qsl(parts.query)).get("password"))
    except ValueError:
        return False


def local_path(place: str) -> str | None:
    """The path of a place that is one, or the URL of one; None where it is elsewhere."""
    scheme, separator, rest = place.partition("://")
    if not separator:
        return place
    return rest if scheme in _LOCAL else None


def redacted(text: str) -> str:
    """A text for people with the passwords in it hidden, and whatever may belong to them."""
    text = _ADDRESS.sub(lambda found: shown_address(found[0]), text)
    text = _WITH_USER.sub(f"://:{HIDDEN}@", text)
    text = _USER.sub(f":{HIDDEN}@", text)
    return _ASSIGNED.sub(rf"\1{HIDDEN}", text)


def shown_value(text: str) -> str:
    """The same for a text that is one value, which ends where an address in it ends."""
    if len(text) > _LONGEST:
        text = HIDDEN if "://" in text or "@" in text else text[:_LONGEST]
    if _SCHEME.match(text):
        return redacted(shown_address(text))
    return redacted(_ANY_USER.sub(f":{HIDDEN}@", text))


def hidden(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value of a topology with the same shape, its texts redacted and cut.

    ``name`` is what the value stands under: of a ``password`` nothing is left.
    """
    if isinstance(value, dict | list | tuple) and depth == _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {key: hidden(item, str(key), depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [hidden(item, name, depth + 1) for item in value]
    if is_sensitive(name) and value is not None and not isinstance(value, bool):
        return HIDDEN
    return shown_value(value) if isinstance(value, str) else value


def redis_fault(address: str, *, apart: bool = False) -> str | None:
    """What is wrong with the address of a Redis-protocol server, without a word of it.

    ``apart``: the password stands elsewhere, so that the address may have none.
    """
    found = _SCHEME.match(address)
    if found is None or found[1] not in (*_REDIS, "unix") or address[:1].isspace():
        return "is no Redis address"
    try:
        parts = urlsplit(address)
        port = parts.port
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    except ValueError:
        if "?" in address and not address.endswith("?"):
            return "is an address with a malformed query, host or port"
        return "is an address whose host or port cannot be read"
    if parts.fragment or any(c.isspace() for c in address):
        return "is an address with a '#' or a blank in it"
    if port == 0 or "@" in parts.path or (parts.scheme != "unix" and not parts.hostname):
        return "is an address whose host or port cannot be read"
    if parts.scheme != "unix" and not _DATABASE.fullmatch(parts.path or "/"):
        return "is an address whose database is no number"
    secret = parts.password is not None or "password" in options
    if apart and secret:
        return "is an address with a password, beside the one that is declared apart"
    if parts.username and not secret and not apart:
        return "is an address with a user and no password"
    if not options.keys() <= _OPTIONS | _SSL_OPTIONS:
        return "is an address with an option that is not known"
    if parts.scheme != "rediss" and options.keys() & _SSL_OPTIONS:
        return "is an address without TLS that has an option of it"
    return None


def redis_remedy(*, apart: bool = False) -> str:
    """What to write instead of an address that has such a fault."""
    return _APART if apart else _WITH_PASSWORD


def tls_files(address: str) -> dict[str, str]:
    """Files and folders that an address names for its TLS, by option; none of a malformed one."""
    if redis_fault(address, apart=True) is not None and redis_fault(address) is not None:
        return {}
    options = dict(parse_qsl(urlsplit(address).query))
    return {name: options[name] for name in _SSL_FILES if name in options}


def differ_in_password(one: str, other: str) -> bool:
    """Whether two addresses of Redis-protocol servers are the same but for their passwords."""
    bare = []
    for address in (one, other):
        try:
            bare.append(without_password(address, apart=redis_fault(address) is not None)[0])
        except StateServerError:
            return False
    return one != other and bare[0] == bare[1]


def without_password(address: str, *, apart: bool = False) -> tuple[str, str | None]:
    """An address that may stand in lists of processes, and the password that it carried.

    Raises ``StateServerError``, which says nothing of the value, for what ``redis_fault`` refuses.
    """
    fault = redis_fault(address, apart=apart)
    if fault is not None:
        raise StateServerError(f"spec.stateServers.url {fault}; {redis_remedy(apart=apart)}")
    parts = urlsplit(address)
    options = parse_qsl(parts.query, keep_blank_values=True)
    password = unquote(parts.password) if parts.password is not None else None
    password = next((value for name, value in options if name == "password"), password)
    user, at, place = parts.netloc.rpartition("@")
    name = user.partition(":")[0]
    place = f"{name}{at}{place}" if name else place
    kept = urlencode([(name, value) for name, value in options if name != "password"])
    return f"{parts.scheme}://{place}{parts.path}{'?' if kept else ''}{kept}", password
