"""All metrics by name: of what type each is, what it is labelled with, and what it means.

Pure data. Nothing is served that does not stand here; ``docs/metrics.md`` shows the same tables.
Values of labels come from small sets, which are named in backquotes, or are names of state servers.
No label names a topology, a window or a pod: whoever scrapes knows of which pod an answer is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class MetricType(StrEnum):
    """Those of Prometheus' types that are used here."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """``meaning`` is one sentence for people; ``labels`` maps names to what their values are.
    ``bounds``: upper bounds of a histogram's buckets, in the unit of its name, infinity left out.
    """

    name: str
    type: MetricType
    meaning: str
    labels: Mapping[str, str]
    bounds: tuple[float, ...] = ()


def _counter(name: str, meaning: str, **labels: str) -> Metric:
    return Metric(name, MetricType.COUNTER, meaning, labels)


def _gauge(name: str, meaning: str, **labels: str) -> Metric:
    return Metric(name, MetricType.GAUGE, meaning, labels)


def _histogram(name: str, meaning: str, bounds: tuple[float, ...], **labels: str) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, meaning, labels, bounds)


_WINDOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_RECOVERY_S = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_TURN_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# -- driver

DRIVER_STATE = _gauge(
    "millrace_driver_state",
    "1 for the state that the driver is in, 0 for others.",
    state="`starting`, `running`, or why it ended: `drained`, `asked`, `fenced`, `failed`, "
    "`engine`, `behind`, `lost`, `deadLetters`",
)
DRIVER_EXECUTION = _gauge("millrace_driver_execution", "Number of the execution that it holds.")
SPARK_RUNNING = _gauge("millrace_driver_spark_running", "1 once Spark runs, 0 while it starts.")
SEALED = _counter("millrace_windows_sealed_total", "Windows sealed.")
LAST_SEALED = _gauge("millrace_window_last_sealed", "Number of the last sealed window.")
LAST_PUBLISHED = _gauge(
    "millrace_window_last_published", "Number of the last window that every sink shows."
)
ATTEMPTS = _counter(
    "millrace_window_attempts_total",
    "Window attempts that ended, by how.",
    result="`ran`, `waited` for a server or sink, `died`, `failed` for good",
)
SEAL_S = _histogram(
    "millrace_window_seal_seconds", "From a window's opening to its seal.", _WINDOW_S
)
PUBLISH_S = _histogram(
    "millrace_window_publish_seconds", "From a window's opening to its publication.", _WINDOW_S
)
ROOTS = _counter("millrace_roots_sealed_total", "Roots that are completely processed and sealed.")
DROPPED = _counter("millrace_roots_dropped_total", "Roots that were dropped, as is allowed.")
REPLAYS = _counter("millrace_replays_total", "Failed roots put into the queue of replays.")
REPLAYS_WAITING = _gauge("millrace_replays_waiting", "Failed roots in that queue.")
DEAD = _counter("millrace_dead_letters_total", "Roots that failed for good.")
DEAD_HELD = _gauge("millrace_dead_letters_held", "Dead letters that nobody took out yet.")
LAG = _gauge(
    "millrace_lag_records",
    "Records that wait in the sources, 0 for one that does not tell (`lag_records`; a generator "
    "without `rate` and `count`). Left out while one cannot be asked.",
)
RECOVERY_S = _histogram(
    "millrace_recovery_seconds",
    "How long recoveries took.",
    _RECOVERY_S,
    of="`driver`, `view`, `attempt`",
)
VIEW_EPOCH = _gauge("millrace_view_epoch", "Epoch of the view of the state servers.")
VIEW_PHASE = _gauge(
    "millrace_view_phase",
    "1 for the phase that the view is in, 0 for others.",
    phase="`creating`, `open`, `moving`",
)
KEY_GROUPS = _gauge(
    "millrace_view_key_groups", "Key groups that a server owns a copy of.", server="state server"
)
MEMORY_USED = _gauge(
    "millrace_state_server_memory_used_bytes", "Memory that a server uses.", server="state server"
)
MEMORY_LIMIT = _gauge(
    "millrace_state_server_memory_limit_bytes",
    "Memory that it may use; 0: any.",
    server="state server",
)
SERVER_FULL = _gauge(
    "millrace_state_server_full", "1 if it refused what a window wrote.", server="state server"
)

# -- acker

ACKER_READING = _gauge("millrace_acker_reading", "1 while it reads the ack log.")
ACKER_ROOTS = _counter("millrace_acker_roots_judged_total", "Roots of the slices that it judged.")
ACKER_SLICES = _counter("millrace_acker_slices_judged_total", "Slices that it judged.")
ACKER_BYTES = _counter(
    "millrace_acker_judged_bytes_total", "Bytes of check values of the slices that it judged."
)
ACKER_MESSAGES = _counter("millrace_acker_messages_total", "Ack messages folded.")
ACKER_ENTRIES = _counter("millrace_acker_entries_total", "Check values XORed, root by root.")
ACKER_READINGS = _counter(
    "millrace_acker_readings_total", "How often it began to read the ack log from its beginning."
)
ACKER_OWNED = _gauge(
    "millrace_acker_slices_owned", "Slices that it owns of the next window attempt with many roots."
)
ACKER_OPEN = _gauge("millrace_acker_attempts_open", "Window attempts that it holds.")

# -- operator

_RESULTS = "`done`, `refused`, `stale`, `away`, `failed`, `bug`, `notLeading`"

LEADER = _gauge("millrace_operator_leader", "1 for the operator that acts, 0 for one on standby.")
RECONCILIATIONS = _counter(
    "millrace_operator_reconciliations_total",
    "Turns for single topologies, by how they ended.",
    result=_RESULTS,
)
RECONCILIATION_S = _histogram(
    "millrace_operator_reconciliation_seconds", "How long these turns took.", _TURN_S
)
LISTS = _counter(
    "millrace_operator_lists_total", "Looks at all topologies, by how they ended.", result=_RESULTS
)
LAST_RECONCILIATION = _gauge(
    "millrace_operator_last_reconciliation_timestamp_seconds",
    "When a turn for a topology went well last.",
)
LAST_LIST = _gauge(
    "millrace_operator_last_list_timestamp_seconds",
    "When all topologies were listed last; before the first time, since when this operator leads.",
)
QUEUE_DEPTH = _gauge("millrace_operator_queue_depth", "Topologies that are due and wait.")
QUEUE_WAIT = _gauge(
    "millrace_operator_queue_longest_seconds",
    "For how long the oldest work waits behind its time, or is under way.",
)
TOPOLOGIES = _gauge(
    "millrace_operator_topologies",
    "Topologies that are seen to, by phase.",
    phase="`Pending`, `Starting`, `Running`, `Paused`, `Suspended`, `Finished`, `Stalled`, "
    "`Deleting`",
)
CONDITIONS = _gauge(
    "millrace_operator_topology_conditions",
    "Topologies by each of their conditions.",
    type="`Ready`, `Reconciling`, `Stalled`, `SparkRunning`, `AckersAvailable`, `StateAvailable`, "
    "`UpToDate`, `Restored`, `StandbyReady`",
    status="`True`, `False`, `Unknown`",
)
TOPOLOGY_READY = _gauge(
    "millrace_operator_topology_ready",
    "1 for a topology that is `Ready`, 0 for one that is not. Left out for those that are paused, "
    "suspended, finished or being deleted.",
    resource_namespace="its namespace",
    resource_name="its name",
)

# -- any process; the library measures these

PROCESS = (
    _counter("process_cpu_seconds_total", "CPU time of the Python process, without the JVM's."),
    _gauge("process_resident_memory_bytes", "Its resident memory."),
    _gauge("process_virtual_memory_bytes", "Its virtual memory."),
    _gauge("process_start_time_seconds", "When it started."),
    _gauge("process_open_fds", "Its open files."),
    _gauge("process_max_fds", "How many it may have."),
)

DRIVER = (
    *(DRIVER_STATE, DRIVER_EXECUTION, SPARK_RUNNING),
    *(SEALED, LAST_SEALED, LAST_PUBLISHED, ATTEMPTS, SEAL_S, PUBLISH_S),
    *(ROOTS, DROPPED, REPLAYS, REPLAYS_WAITING, DEAD, DEAD_HELD, LAG, RECOVERY_S),
    *(VIEW_EPOCH, VIEW_PHASE, KEY_GROUPS, MEMORY_USED, MEMORY_LIMIT, SERVER_FULL),
)
ACKER = (
    *(ACKER_READING, ACKER_ROOTS, ACKER_SLICES, ACKER_BYTES, ACKER_MESSAGES, ACKER_ENTRIES),
    *(ACKER_READINGS, ACKER_OWNED, ACKER_OPEN),
)
OPERATOR = (
    *(LEADER, RECONCILIATIONS, RECONCILIATION_S, LISTS, LAST_RECONCILIATION, LAST_LIST),
    *(QUEUE_DEPTH, QUEUE_WAIT, TOPOLOGIES, CONDITIONS, TOPOLOGY_READY),
)

CATALOGUE: Mapping[str, Sequence[Metric]] = {
    "Driver": DRIVER,
    "Acker": ACKER,
    "Operator": OPERATOR,
    "Every process": PROCESS,
}
"""By the headings of ``docs/metrics.md``."""


def rows(metrics: Sequence[Metric]) -> list[str]:
    """Rows of a table in Markdown: name, type, labels, meaning."""
    made = []
    for one in metrics:
        labels = "; ".join(f"`{name}`: {says}" for name, says in one.labels.items())
        cells = (f"`{one.name}`", one.type, labels, one.meaning)
        made.append("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|")
    return made
