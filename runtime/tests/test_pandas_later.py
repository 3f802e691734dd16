"""A process loads pandas when its own code does, and Arrow knows what is of pandas from then on."""

from __future__ import annotations

import subprocess
import sys

import pytest

BEGIN = """
import sys
import pyarrow as pa
from millrace import pandaslater
pandaslater.put_off()
pa.array(["a", None, 1.5][:2]), pa.table({"a": [1, 2]}), pa.RecordBatch.from_pylist([{"a": 1}])
assert "pandas" not in sys.modules
"""

BY_CODE = """
import pandas
import numpy
made = pa.array(pandas.Series([1.0, numpy.nan]))
assert made.null_count == 1, made
assert pa.array(pandas.Categorical(["a", "b"])).type == pa.dictionary(pa.int8(), pa.string())
assert pa.Table.from_pandas(pandas.DataFrame({"a": [1]})).num_rows == 1
assert type(pandas.__loader__).__module__ == pandas.__spec__.loader.__module__
assert "pandaslater" not in type(pandas.__loader__).__module__
"""

BY_ARROW = """
frame = pa.table({"a": [1, 2]}).to_pandas()
assert list(frame["a"]) == [1, 2]
assert pa.array(frame["a"]).to_pylist() == [1, 2]
import numpy
import pandas
assert pa.array(pandas.Series([1.0, numpy.nan])).null_count == 1
"""

BY_PART = """
from pandas.api.types import is_integer_dtype
import pandas, numpy
assert pa.array(pandas.Series([1.0, numpy.nan])).null_count == 1
"""

TWICE = """
pandaslater.put_off()
import pandas
pandaslater.put_off()
import numpy
assert pa.array(pandas.Series([1.0, numpy.nan])).null_count == 1
"""

MISSING = """
import importlib.machinery
importlib.machinery.PathFinder.find_spec = classmethod(lambda *_: None)
try:
    import pandas
except ModuleNotFoundError:
    pa.array(["a"])
else:
    raise AssertionError("found")
"""


@pytest.mark.parametrize("code", [BY_CODE, BY_ARROW, BY_PART, TWICE, MISSING])
def test_it_is_loaded_by_who_uses_it(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_workers_are_forked_from_has_none() -> None:
    code = """
import sys
from millrace.engine.task import daemon
daemon._prepare()
import pyspark.daemon
assert "numba" in sys.modules
assert "pandas" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
