from __future__ import annotations

import subprocess
import sys


def test_the_standard_library_s_operator_is_not_hidden():
    import operator

    assert operator.add(1, 2) == 3


def test_the_operator_needs_no_engine():
    code = (
        "import sys, millrace_operator\n"
        "print(*({'pyspark', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")
