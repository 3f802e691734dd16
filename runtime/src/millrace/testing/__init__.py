"""A conformance kit: runs a source or a sink of your own through what a life of faults does to it.

``check_source`` and ``check_sink`` make copies of it in processes of their own, as the driver and
its workers do, kill them at each line of its code, let old ones wake up late, and compare what is
read or shown with what was promised. Both raise ``ConformanceError`` with the list of findings,
each with the rule that it breaks and the remedy. They need neither Spark nor pytest.

``run_processor`` runs a function or a class over a few rows by the engine's own steps.
"""

from millrace.testing.findings import ConformanceError, Finding
from millrace.testing.processors import run_processor
from millrace.testing.rules import SINK_RULES, SOURCE_RULES
from millrace.testing.sinks import check_sink
from millrace.testing.sources import check_source

__all__ = [
    "SINK_RULES",
    "SOURCE_RULES",
    "ConformanceError",
    "Finding",
    "check_sink",
    "check_source",
    "run_processor",
]
