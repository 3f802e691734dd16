"""Log lines for programs: one line of JSON each."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """``time`` (UTC), ``level``, ``logger``, ``message``, what a line is about, and a traceback."""

    def about(self) -> Mapping[str, str]:
        """What the line that is written now is about."""
        return {}

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **self.about(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)
