"""A state server of the user's own: where it is, and the password that it takes.

The password stands in the address, in a Secret that the topology refers to, or, on one machine, in
the environment variable that carries it to the processes of a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from millrace.addresses import without_password
from millrace.connector import secret_value
from millrace.errors import MillraceError, StateServerError
from millrace.homes.settings import PASSWORD_VARIABLE
from millrace.topology.model import StateServers

NAME = "state-0"
"""What the one server of a topology is called, as a member."""

_FIELD = "spec.stateServers.password"


def own_server(
    wanted: StateServers,
    failure: type[MillraceError] = StateServerError,
    environment: Mapping[str, str] | None = None,
) -> tuple[str, str | None]:
    """The address of the server that ``wanted`` names, without a password, and the password, None
    for none. Raises ``StateServerError`` for an address that is none, and ``failure`` where the
    value of a reference cannot be read."""
    assert wanted.url is not None
    url, inside = without_password(wanted.url, apart=wanted.password is not None)
    if wanted.password is not None:
        return url, secret_value(wanted.password.secret_ref, _FIELD, failure, environment)
    given = os.environ if environment is None else environment
    return url, inside or given.get(PASSWORD_VARIABLE)
