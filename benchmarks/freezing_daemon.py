"""The Python worker daemon of the baselines: heavy modules are loaded once and frozen.

Spark's own daemon lets every worker run a full garbage collection after each task, 44 to 96 ms
with Arrow and pandas loaded; the baselines are not to pay for that.
"""

from __future__ import annotations

import gc

if __name__ == "__main__":
    import pandas  # noqa: F401
    import pyarrow.compute  # noqa: F401
    import pyspark.worker  # noqa: F401
    from pyspark import daemon

    gc.collect()
    gc.freeze()
    daemon.manager()
