"""``python -m millrace.pods driver|acker|state-server|executor``: the entry point of the images."""

from __future__ import annotations

import importlib
import logging
import os
import sys

from millrace.errors import ExitCode
from millrace.homes.pods import Role
from millrace.logs import stacks
from millrace.pods.kernels import bring_kernels
from millrace.startup import loading, one_thread

_MODULES = {
    Role.DRIVER: "millrace.pods.driver",
    Role.ACKER: "millrace.pods.acker",
    Role.STATE_SERVER: "millrace.pods.state_server",
    Role.EXECUTOR: "millrace.pods.executor",
}


def main(arguments: list[str]) -> int:
    """Be what the first argument says; the others are its own."""
    roles = [str(role) for role in Role]
    if not arguments or arguments[0] not in roles:
        print(f"usage: python -m millrace.pods {'|'.join(roles)}", file=sys.stderr)
        return ExitCode.USAGE
    stacks.write_on_request()
    bring_kernels()
    role = Role(arguments[0])
    if role is Role.DRIVER:
        from millrace.engine.later import COMPILED, load_later

        load_later(COMPILED)
    if role is Role.ACKER:
        os.environ.update(one_thread())
    # Each image carries what its own roles need.
    with loading():
        module = importlib.import_module(_MODULES[role])
    code: int = module.main(arguments[1:])
    return code


if __name__ == "__main__":
    # Threads of the JVM and of watches would hold the interpreter at its end.
    code = main(sys.argv[1:])
    logging.shutdown()
    os._exit(code)
