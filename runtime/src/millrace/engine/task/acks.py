"""What a task attempt tells the ackers, from its books."""

from __future__ import annotations

from functools import lru_cache

from millrace import crash
from millrace.engine.task import kernels
from millrace.engine.task.books import Books
from millrace.engine.task.context import Task
from millrace.engine.task.state import Services
from millrace.protocol.holes import Runs
from millrace.protocol.types import EnclosedAcks
from millrace.state.client import StateAddress, connect
from millrace.tracking.collector import AckCollector, Messages
from millrace.tracking.log import AckLog
from millrace.tracking.message import enclosed

ENCLOSED_BYTES = 32 << 10
"""So much of an attempt's ack messages goes through the driver at most: every acker reads it."""


def acks_of(task: Task, services: Services, runs: Runs) -> Messages:
    """The task's ack messages; ``runs`` are the (first, count) of the roots that it read. None with
    tracking off."""
    if not task.books.tracked or services.log is None:
        return ()
    return tuple(collect(task, runs).messages())


def send_acks(
    task: Task, services: Services, messages: Messages, encloses: bool = False
) -> EnclosedAcks:
    """Write ack messages of the task, and of others of its attempt, to the log. Where the task's
    report ``encloses`` them, few bytes are returned for that instead."""
    if not messages or services.log is None:
        return ()
    short: EnclosedAcks = ()
    if encloses and sum(len(message) for _, message in messages) <= ENCLOSED_BYTES:
        short = tuple((partition, enclosed(message)) for partition, message in messages)
    else:
        _log(services.log, task.program.uid).append(task.plan.id, messages)
    crash.reached("worker.acked")
    return short


@lru_cache(maxsize=8)
def _log(address: StateAddress, uid: str) -> AckLog:
    return AckLog(connect(address, uid).redis, uid)


def collect(task: Task, runs: Runs) -> AckCollector:
    """The books of a task as the collector that makes messages of them."""
    intent = task.plan.intent
    collector = AckCollector(
        task.plan.id, task.id, intent.roots, intent.ranges, runs, slices=task.plan.slices
    )
    return told(task.books, collector)


def told(books: Books, collector: AckCollector) -> AckCollector:
    """``collector`` with all that the books hold."""
    for edge, runs in books.read.items():
        collector.add_read(edge, runs)
    for edge, net in books.nets.items():
        low, high = kernels.nonzero_span(net)
        if low < high:
            collector.add_net(edge, net, low, high - 1)
    for edge, value in books.tree.items():
        collector.add_window(edge, value)
    return collector
