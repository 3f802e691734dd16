"""What an acker may do on a state server: read the ack log, and answer to it."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.tracking.log import log_prefix, matching

_READS = ("xread", "xrange", "info", "ping")
_WRITES = ("xadd", "hset", "expire", "evalsha", "script|load")
_CONNECTS = ("client|setname", "client|setinfo")


def acker_rules(uid: str, digests: Iterable[str]) -> list[str]:
    """Rules of the user that the ackers of a topology are on a server; ``digests`` are the SHA-256
    of the passwords that it takes, in hexadecimal digits.

    It adds verdicts and what it has used, and writes nothing else. Servers and ackers may be of
    different releases: an acker that comes to need more must do without where it is not allowed.
    """
    log = matching(log_prefix(uid))
    return [
        *("on", "resetpass", *(f"#{one}" for one in digests)),
        *("resetkeys", f"%R~{log}*", f"~{log}*:v", f"~{log}load"),
        *("resetchannels", "-@all", *(f"+{one}" for one in (*_READS, *_WRITES, *_CONNECTS))),
    ]
