"""What can go wrong between a process and the state servers."""

from __future__ import annotations

from millrace.errors import ProtocolError, StateServerError, TopologyError
from millrace.protocol.server import NotOwner, Reason


class UnreachableError(StateServerError):
    """The state server ``server`` did not answer within its time-out, or is still loading its
    file."""

    server = ""


class OutOfMemoryError(StateServerError):
    """The memory of the state server ``server`` is full; it still takes records, deletions and
    whatever else is small."""

    server = ""


class NotOwnerError(StateServerError):
    """A server refused a message: it restarted, or is under another stamp (``refusal``)."""

    def __init__(self, server: str, refusal: NotOwner) -> None:
        ends = refusal.reason is Reason.FENCED
        goes_on = "this driver ends" if ends else "the driver goes on under the view as it is then"
        super().__init__(
            f"state server {server} refused a message: {refusal.why}; {goes_on}, nothing has to be "
            "done by hand"
        )
        self.server = server
        self.refusal = refusal

    def __reduce__(self) -> tuple[type[NotOwnerError], tuple[str, NotOwner]]:
        return NotOwnerError, (self.server, self.refusal)


class ObjectMissingError(StateServerError):
    """Every owner of an object answered, and none holds it."""


class ObjectTooLargeError(StateServerError):
    """An object that no state server takes, however long one waits."""

    retryable = False


class BlobError(ProtocolError):
    """A state object is damaged, or is not what the record says it is."""


class KeyTypeError(TopologyError):
    """A key column has a type that cannot be a key."""


class StateSchemaError(TopologyError):
    """Stored state has other columns than the processor now declares: no restart mends that."""


class StateMigrationError(StateSchemaError):
    """User code that is to bring stored state into the columns of today failed on a key."""
