"""Splitting lines into words, as a vectorised function.

A vectorised function gets many tuples at once as an Arrow record batch and answers with two
things: the columns that it puts out, and for every row of them the index of the row that it comes
from. Those indices are how Millrace knows which words belong to the tree of which line.

Words are what stands between ASCII white space, as they are: no case folding, no punctuation
rules, so that ``bytes.split`` in any other program counts the same.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from millrace import vectorized


@vectorized(output="word string")
def split(batch: pa.RecordBatch) -> tuple[dict[str, pa.Array], pa.Array]:
    """Every line (``value string``) becomes its words (``word string``)."""
    words = pc.ascii_split_whitespace(batch.column("value"))
    parents = pc.list_parent_indices(words)
    flat = pc.list_flatten(words)
    # White space at the ends of a line leaves empty strings there.
    real = pc.not_equal(flat, "")
    return {"word": flat.filter(real)}, parents.filter(real)
