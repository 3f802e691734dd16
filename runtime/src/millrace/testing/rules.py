"""The rules that the kit tries, each with the remedy for one who breaks it."""

from __future__ import annotations

from collections.abc import Mapping

SINK_RULES: Mapping[str, str] = {
    "staged": "stage() returns a Staged of this sink and name with the number of rows and the "
    "digest of what was written, or None where there are no rows; its locator is JSON",
    "invisible": "what stage() writes is seen only once publish() shows it: stage into the staging "
    "area (stage_rows), not into the target",
    "shown": "publish() shows exactly the rows of the staged outputs it is given, each once, also "
    "none; let read_back give them with the values of row()",
    "again": "publish() finds a window's marker in the target and returns: write rows and marker "
    "in one transaction, keep nothing about it in memory alone",
    "other-digest": "keep the digest beside the window's marker; where it differs raise a "
    "SinkError that is not retryable, before anything is written",
    "not-sealed": "publish() shows what the sealed window names, never what else is staged; "
    "discard() drops what it is told to and nothing else",
    "last-shown": "last_shown() gives the last window that is shown and its digest, in every "
    "process, None before the first, and changes nothing",
    "damaged": "check the digest of every staged output before the first row is shown "
    "(staged_rows and staged_bytes do); raise SinkError",
    "fenced": "keep the highest execution in the target; fence() and publish() raise FencedError "
    "for a lower one, in every process, and accept the same one again",
    "foreign": "mark the target with the uid in prepare(); for another uid raise a SinkError that "
    "is not retryable and change nothing",
    "fresh": "check_fresh() raises what prepare(uid, fresh=True) would raise, and changes nothing",
    "check": "check() raises what showing rows would raise now, nothing where they can be shown, "
    "and changes nothing",
    "overwrite": "prepare(uid, fresh=True, overwrite=True) deletes all that another life wrote, "
    "its marker and fence last; for the uid's own target it deletes nothing",
    "occupied": "prepare() refuses a target that holds what Millrace did not write (SinkError), "
    "and never deletes it, not even with overwrite",
    "crash-prepare": "each step of prepare() must be one that the next prepare() finishes: mark "
    "the target as the first or the last thing, in one transaction where there is one",
    "crash-fence": "a process may die at any line of fence(); the next execution fences again",
    "crash-stage": "a task may die at any line of stage(); nothing of it may show or be in the "
    "way of the next attempt, which has another name",
    "crash-publish": "a process may die at any line of publish(); the next one calls it again: "
    "rows and marker change together or the marker comes last and rows are written idempotently",
    "retry": "an exception may end publish() at any line; the same object is asked again: "
    "remember nothing before the target has it, roll back in a finally or with block",
    "zombie": "an older execution may sleep at any line and wake up when a newer one has gone on: "
    "check fence and marker in the very transaction that writes the rows (SQLite: BEGIN IMMEDIATE "
    "before the first look)",
    "returns": "every method comes back; hold no lock that a dead or sleeping process may hold",
}

SOURCE_RULES: Mapping[str, str] = {
    "replayable": "Millrace reads records again after a crash; a source that cannot must write "
    "what arrives to files first",
    "schema": "schema() gives the same pyarrow.Schema in every process, and every batch has it",
    "columns": "a run takes columns of types that files hold (no durations, no intervals), and no "
    "names that are reserved: give another type or name",
    "fits": "a value that its column cannot hold in a run (an instant finer than a microsecond, an "
    "integer beyond 64 bits, a text that is not UTF-8) makes its record one that cannot be "
    "decoded: round it, or name the row in errors",
    "plan": "plan() returns a SourcePlan of at most max_records records in RootRanges of this "
    "source, each of at least one record (range_of makes them)",
    "json": "offsets and locators consist of None, booleans, finite numbers, strings, lists and "
    "dicts with string keys; they must read back from JSON as what they were",
    "once": "no two ranges hold the same (partition, offset), in one plan or in successive ones",
    "plan-again": "plan() depends on offsets and the outside world alone: keep no position in the "
    "object, and do not use up what was planned",
    "short": "with a small max_records the same records come in more plans; take what is left the "
    "next time",
    "drained": "drained is true when nothing will ever come behind offsets, and only then",
    "read": "read() yields ReadBatches with exactly piece.count rows and holes in offset order; "
    "errors name rows of their batch, which are null in all columns",
    "read-again": "read() gives the same rows and holes for a range, any number of times, also "
    "while another range is read and after a reader was left half-way",
    "elsewhere": "a range's locator says all that another process needs: nothing may come from "
    "plan()'s memory, the process or hash(), which differs between processes",
    "split": "split(piece, at) gives two ranges that read as the first at rows and the rest; a "
    "locator that says where records begin must be cut too (override split)",
    "locate": "locate(piece, index) is a locator that, with the record's offset and the count 1, "
    "reads that very record (override locate)",
    "payload": "payload() gives the bytes of the record that a replay names, always the same",
    "words": "check() raises nothing where records can be read, lag() is None or a count of "
    "records, place() is text or raises; all three change nothing",
    "acks": "on_ack() and on_fail() come at least once and may be told the same again; what they "
    "do must leave later windows and failed records readable",
    "crash": "a process may die at any line; a new one plans and reads as if nothing had been "
    "planned: change nothing outside before on_ack()",
    "returns": "every method comes back; plan() at once, with nothing where there is nothing",
}
