"""``python -m millrace_operator``: the entry point of the operator's image."""

from __future__ import annotations

import sys

from millrace_operator.main import main

if __name__ == "__main__":
    sys.exit(main())
