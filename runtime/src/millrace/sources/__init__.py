"""Sources of records: files that may still grow, a generator, and classes of your own."""

from millrace.sources.base import Acked, ReadBatch, Source, SourcePlan, cut, range_of
from millrace.sources.loader import SourceSpec, make_source, open_source

__all__ = [
    "Acked",
    "ReadBatch",
    "Source",
    "SourcePlan",
    "SourceSpec",
    "cut",
    "make_source",
    "open_source",
    "range_of",
]
