"""Windows whose first pass was begun ahead on other threads, inside the test process."""

from __future__ import annotations

from contextlib import suppress

from engine_support import Windows

from millrace.engine.jobs.shares import share
from millrace.engine.program.link import Work
from millrace.engine.task import worker
from millrace.engine.task.blackbox import Box
from millrace.engine.task.stay.ahead import Aheads, go_on
from millrace.engine.task.worker import FirstPass, Job, decode_reports, encode_pieces
from millrace.protocol.types import AttemptPlan, TaskReport

WORDS = """
sources: [{name: lines, files: {path: texts}}]
processors:
  - {name: words, inputs: [{from: lines}], split: {column: value, into: word}}
  - name: counts
    inputs: [{from: words, key: [word]}]
    aggregate: {columns: [{name: n, function: count}]}
sinks: [{name: rows, inputs: [{from: counts}], files: {path: rows, format: jsonLines}}]
"""
OBJECTS = WORDS.replace(
    "split: {column: value, into: word}",
    "json: {column: value, columns: [{name: word, type: string, required: true}]}",
)


class Beside(Windows):
    """Windows of one task in this process, whose first pass was begun ahead on another thread.

    ``between`` is called when that is over; ``damaged`` gives what then arrives instead, in the
    parcel of the last lane. It has at most so many ``lanes``.
    """

    def __init__(self, *given):
        super().__init__(*given, whole=True)
        self.lanes = 1
        self.between = lambda: None
        self.damaged = lambda parcel: parcel
        self.taken = 0

    def work_of(self, plan: AttemptPlan) -> tuple[Job, Work]:
        job = Job(str(self.kit), plan, self.services, True)
        worker.toolbox_of(job).bench.box = Box(None, None)  # pytest's own time-out uses the timer
        (pieces,) = share(plan.intent, 1, self.sources)
        return job, Work(job.encode(), encode_pieces(pieces), True, self.lanes)

    def run_tasks(self, plan: AttemptPlan) -> list[TaskReport]:
        job, work = self.work_of(plan)
        with Aheads() as aheads:
            aheads.begin(plan.id, work)
            with suppress(Exception):
                aheads._begun[plan.id].result()
            self.between()
            parcels = aheads.take(job)
        self.taken = len(parcels)
        made = FirstPass(work.job)(0, [work.share])
        if parcels:
            made = go_on(job, [*parcels[:-1], self.damaged(parcels[-1])])
        return [report for data in made for report in decode_reports(data)]
