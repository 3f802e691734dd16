from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.topology.usercode import code_on_path, find_object

FOLDER = Path(__file__).parents[3] / "examples" / "wordcount"

with code_on_path(FOLDER):
    split = find_object("wordcount:split", FOLDER)

LINES = st.lists(st.text(st.sampled_from("ab é\u00a0 \t\f\v\r,."), max_size=12), max_size=8)


@settings(deadline=None)
@given(LINES)
def test_words_and_parents_agree_with_a_plain_split(lines):
    batch = pa.record_batch({"value": pa.array(lines, pa.string())})
    output, parents = split(batch)
    found = list(zip(output["word"].to_pylist(), parents.to_pylist(), strict=True))
    assert found == [
        (word.decode(), index) for index, line in enumerate(lines) for word in line.encode().split()
    ]
