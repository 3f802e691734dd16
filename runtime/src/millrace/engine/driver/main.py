"""The driver process: ``python -m millrace.engine.driver.main --settings FILE``.

With ``--standby READY`` it is a driver only when that is said on its standard input (``standby``).
Claiming the execution and reading the record go on while Spark starts, so a new driver is ready
as soon as its JVM is. SIGTERM ends it behind the running publication; SIGKILL at any moment is
what the protocol is for.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from millrace import crash, stacks
from millrace.clock import SystemClock
from millrace.engine.driver.process import DriverProcess, Start, read_settings
from millrace.engine.driver.standby import Standby, private_orders
from millrace.engine.jobs.start import start_spark
from millrace.engine.program import signing
from millrace.errors import ExitCode, MillraceError
from millrace.repeats import quiet_repeats

log = logging.getLogger("millrace.driver")


def main(arguments: list[str] | None = None) -> int:
    """Run a driver to its end and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m millrace.engine.driver.main", description=__doc__
    )
    parser.add_argument("--settings", type=Path, required=True, help="what the driver is told")
    parser.add_argument(
        "--standby", type=Path, metavar="READY", help="stand by; make this file when all is up"
    )
    options = parser.parse_args(arguments)
    signing.forget_secret()
    logging.basicConfig(
        level=os.environ.get("MILLRACE_LOG_LEVEL", "INFO"),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
        stream=sys.stderr,
    )
    quiet_repeats()
    stacks.write_on_request()
    logging.getLogger("py4j").setLevel(logging.WARNING)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start: Start = start_spark
    try:
        settings = read_settings(options.settings)
        # Neither Spark nor what user code starts needs it; workers have it from their kit.
        password = os.environ.pop(settings.password_variable, None)
        if options.standby is not None:
            crash.reached("standby.begun")
            orders = private_orders()
            standby = Standby(options.settings, options.standby, SystemClock())
            if not standby.wait(orders):
                # Not OK, which says that all input is processed.
                print("error: nobody is left to tell this driver to take over", file=sys.stderr)
                return ExitCode.FAILED
            start = standby.start
        process = DriverProcess(settings, password, start=start)
    except MillraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except Exception:
        log.exception("the driver cannot begin")
        return ExitCode.FAILED
    return _run(process)


def _run(process: DriverProcess) -> int:
    def stop(_: int, __: FrameType | None) -> None:
        process.ask_to_stop()

    signal.signal(signal.SIGTERM, stop)
    try:
        return process.run()
    except MillraceError as error:
        log.error("%s", error)
        return error.exit_code
    except Exception:
        # The boundary of the process: the supervisor decides what follows from the exit code.
        log.exception("the driver failed")
        return ExitCode.FAILED


if __name__ == "__main__":
    # The JVM has threads that would hold the interpreter at its end.
    code = main()
    logging.shutdown()
    os._exit(code)
