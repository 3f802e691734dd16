"""What the API server says against pods of executors: a pod that it refuses is never there, and
nobody but the driver's Spark hears why.

Spark asks for it again every second and tells each refusal to its log alone, with a page of Java.
What it logs there is kept here instead, until it is asked for.
"""

from __future__ import annotations

import logging
import re

from py4j.protocol import Py4JError
from pyspark import SparkContext

log = logging.getLogger(__name__)

_ALLOCATOR = "org.apache.spark.scheduler.cluster.k8s.ExecutorPodsAllocator"
_FIELD, _END = "\x1f", "\x1e"
_PATTERN = f"%m{_FIELD}%ex{{short.message}}{_END}"

_SAID = re.compile(r"Message: (.*?)\.? Received status: ", re.S)
"""Of the client's text, with addresses and the whole answer, what the API server says."""

_NUMBER = re.compile(r"(-exec-)\d+")


def cause(text: str) -> str:
    """What a refusal comes to; the same for whichever of the executors is refused."""
    said = _SAID.search(text)
    return _NUMBER.sub(r"\1N", said.group(1) if said is not None else text).strip()


class Refusals:
    """Those of a Spark whose executors are pods, since this was made. From any one thread."""

    def __init__(self, context: SparkContext) -> None:
        java = context._jvm
        assert java is not None
        log4j = java.org.apache.logging.log4j
        loggers = log4j.LogManager.getContext(False)
        configuration, error = loggers.getConfiguration(), log4j.Level.ERROR
        self._kept = java.java.io.StringWriter()
        layout = log4j.core.layout.PatternLayout.newBuilder().withPattern(_PATTERN).build()
        appender = log4j.core.appender.WriterAppender.createAppender(
            layout, None, self._kept, "refusals", False, False
        )
        appender.start()
        logger = log4j.core.config.LoggerConfig(_ALLOCATOR, error, False)
        logger.addAppender(appender, error, None)
        configuration.addLogger(_ALLOCATOR, logger)
        loggers.updateLoggers()

    def drain(self) -> list[str]:
        """What was said since the last time, the oldest first; nothing of a JVM that has ended."""
        try:
            whole, _, _ = self._kept.toString().rpartition(_END)
            if whole:
                self._kept.getBuffer().delete(0, _length(whole) + len(_END))
        except Py4JError:
            return []
        found = []
        for one in filter(None, whole.split(_END)):
            message, _, thrown = one.partition(_FIELD)
            if thrown.strip():
                found.append(cause(thrown))
            else:
                log.error("%s", message)
        return found


def _length(text: str) -> int:
    """As Java counts it."""
    return len(text.encode("utf-16-le")) // 2
