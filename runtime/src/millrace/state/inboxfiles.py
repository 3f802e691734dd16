"""The inbox of a driver on one machine: a file with the proposal, a folder of request files."""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

from millrace import checked, durable
from millrace.errors import NewerFormatError
from millrace.homes import codec
from millrace.homes.documents import Proposal, Request
from millrace.homes.stores import HomeAwayError, PendingRequest

log = logging.getLogger(__name__)


class InboxFiles:
    """See ``homes.stores.Inbox``. Tokens are the names of request files without ``.json``."""

    def __init__(self, proposal: Path, requests: Path) -> None:
        self._proposal = proposal
        self._requests = requests
        self._seen = b""
        self._read: Proposal | None = None

    def propose(self, proposal: Proposal) -> None:
        """Not durable: who proposes says it again whenever it starts. Raises ``OSError``."""
        durable.replace(self._proposal, _text(proposal), durable=False)

    def proposal(self) -> Proposal | None:
        try:
            data = self._proposal.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _away(self._proposal, error) from error
        if data != self._seen:
            self._seen, self._read = data, self._decoded(data)
        return self._read

    def _decoded(self, data: bytes) -> Proposal | None:
        try:
            return codec.decode(Proposal, data)
        except NewerFormatError as error:
            raise NewerFormatError(f"{self._proposal}: {error}") from error
        except checked.DamagedError as error:
            log.warning("%s is ignored: it cannot be read (%s)", self._proposal, error)
            return None

    def ask(self, request: Request) -> str:
        """Raises ``OSError``."""
        self._requests.mkdir(mode=0o700, exist_ok=True)
        # Names sort in the order of asking.
        token = f"{time.time_ns()}-{secrets.token_hex(4)}"
        durable.replace(self._requests / f"{token}.json", _text(request))
        return token

    def requests(self) -> Sequence[PendingRequest]:
        try:
            files = sorted(path for path in self._requests.glob("*.json") if path.is_file())
        except OSError as error:
            raise _away(self._requests, error) from error
        found = []
        for file in files:
            try:
                found.append(PendingRequest(file.stem, codec.decode(Request, file.read_bytes())))
            except NewerFormatError as error:
                log.warning("request %s is left alone: %s", file.name, error)
            except checked.DamagedError as error:
                log.warning("request %s is dropped: %s", file.name, error)
                self.done(file.stem)
            except FileNotFoundError:
                continue  # done meanwhile
            except OSError as error:
                # One that cannot be read keeps none of the others from being heard.
                log.warning("request %s waits: it cannot be read (%s)", file.name, error)
        return found

    def done(self, token: str) -> None:
        try:
            (self._requests / f"{token}.json").unlink(missing_ok=True)
        except OSError as error:
            raise _away(self._requests, error) from error


def _text(document: object) -> bytes:
    return (json.dumps(codec.encode(document), indent=1) + "\n").encode()


def _away(path: Path, error: OSError) -> HomeAwayError:
    return HomeAwayError(f"{path}: cannot be used ({error.strerror or error}); it is tried again")
