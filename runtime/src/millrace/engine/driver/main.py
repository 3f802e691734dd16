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
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from millrace import crash
from millrace.clock import SystemClock
from millrace.engine.jobs.ahead import SparkAhead
from millrace.engine.jobs.starttimes import StartTimes
from millrace.engine.later import COMPILED, load_later
from millrace.engine.program import signing
from millrace.errors import ExitCode, MillraceError, error_text
from millrace.homes.passwords import PasswordOf, of_root_key, shared
from millrace.homes.settings import ROOT_KEY_VARIABLE, DriverSettings
from millrace.homes.told import read_settings, read_topology
from millrace.logs import stacks
from millrace.logs.repeats import quiet_repeats
from millrace.startup import loading
from millrace.threads import switch_often

if TYPE_CHECKING:
    from millrace.engine.driver.process import DriverProcess

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
    load_later(COMPILED)
    switch_often()
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
    try:
        settings = read_settings(options.settings)
        # Neither Spark nor what user code starts needs them; workers have theirs from their kit.
        password = os.environ.pop(settings.password_variable, None)
        root_key = os.environ.pop(ROOT_KEY_VARIABLE, "")
        password_of = of_root_key(root_key, settings.uid) if root_key else shared(password)
        process = (
            _driver(settings, password_of)
            if options.standby is None
            else _heir(settings, password_of, options)
        )
        if process is None:
            # Not OK, which says that all input is processed.
            print("error: nobody is left to tell this driver to take over", file=sys.stderr)
            return ExitCode.FAILED
    except MillraceError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except BaseException as error:
        # As below: code of the topology that asks the process to exit would say that all is done.
        log.exception("the driver cannot begin: %s", error_text(error))
        return ExitCode.FAILED
    return _run(process)


def _driver(settings: DriverSettings, password_of: PasswordOf) -> DriverProcess:
    """One that starts cold: its session is begun while its code is imported."""
    times = StartTimes()
    times.reached("Python up")
    topology = read_topology(Path(settings.topology))
    session = SparkAhead(topology, Path(settings.workdir), times=times)
    with loading():
        from millrace.engine.driver.process import DriverProcess
        from millrace.engine.jobs.start import start_spark

    session.times.reached("code imported")
    # Sources and sinks of the user are made with the driver. Until the JVM is up its secret stands
    # in the environment, which what they start would inherit.
    session.await_jvm()
    return DriverProcess(settings, password_of, start=partial(start_spark, session=session))


def _heir(
    settings: DriverSettings, password_of: PasswordOf, options: argparse.Namespace
) -> DriverProcess | None:
    """One that has stood by and was told to take over; None where nobody can say so."""
    with loading():
        from millrace.engine.driver.process import DriverProcess
        from millrace.engine.driver.standby import Standby, private_orders

    crash.reached("standby.begun")
    orders = private_orders()
    standby = Standby(options.settings, options.standby, SystemClock())
    if not standby.wait(orders):
        return None
    # Those of edits that it has not seen, which need no other driver.
    settings = read_settings(options.settings)
    return DriverProcess(settings, password_of, start=standby.start)


def _run(process: DriverProcess) -> int:
    def stop(_: int, __: FrameType | None) -> None:
        process.ask_to_stop()

    signal.signal(signal.SIGTERM, stop)
    try:
        return process.run()
    except MillraceError as error:
        log.error("%s", error)
        return error.exit_code
    except BaseException as error:
        # The boundary of the process: the supervisor decides what follows from the exit code.
        log.exception("the driver failed: %s", error_text(error))
        return ExitCode.FAILED


if __name__ == "__main__":
    # The JVM has threads that would hold the interpreter at its end.
    code = main()
    logging.shutdown()
    os._exit(code)
