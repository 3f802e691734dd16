"""Gives totals by line the column names of totals by word."""

from __future__ import annotations

from millrace import row


@row(output="word string, n long")
def rename(totals):
    return {"word": totals["value"], "n": totals["n"]}
