"""The production machines a run is made of; a deliberate bug replaces one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.protocol.acker import AckerMachine
from millrace.protocol.driver import Driver
from millrace.protocol.membership import Owners
from millrace.protocol.record import Locate
from millrace.protocol.settings import Settings
from millrace.protocol.types import Member, View
from millrace.simulate.parts.acklog import make_machine
from millrace.simulate.parts.driver import DriverProcess
from millrace.simulate.parts.engine import Attempt
from millrace.simulate.parts.flow import Ids
from millrace.simulate.parts.plainfold import PlainMessage
from millrace.simulate.parts.restoring import Restore
from millrace.simulate.parts.server import ServerModel
from millrace.simulate.parts.sinks import FilesSink, Sink, TransactionSink
from millrace.simulate.parts.supervisor import is_without, may_release
from millrace.simulate.world import Clock, World


@dataclass(frozen=True, slots=True)
class Machines:
    """What stands in for each part; the defaults are what production runs."""

    driver: Callable[[Settings, Owners, Locate], Driver] = Driver
    server: Callable[[str, str], ServerModel] = ServerModel
    acker: Callable[[str], AckerMachine[PlainMessage]] = make_machine
    ids: Callable[[], Ids] = Ids
    attempt: type[Attempt] = Attempt
    clock: Callable[[World], Clock] = World.monotonic_clock
    process: type[DriverProcess] = DriverProcess
    restore: type[Restore] = Restore
    parting: Callable[[View | None, str], bool] = is_without
    releasing: Callable[[View | None, tuple[Member, ...], int], bool] = may_release
    sinks: tuple[type[Sink], ...] = (FilesSink, TransactionSink)
