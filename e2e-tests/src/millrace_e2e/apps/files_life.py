"""Processors of the life of a folder: each line says which file it is of and its place there."""

from __future__ import annotations

from typing import Any

from millrace import row, stateful


@row(output="file string, line long")
def parse(line: dict[str, Any]) -> dict[str, Any]:
    """``f0007 12`` is line 12 of file f0007."""
    file, number = line["value"].split()
    return {"file": file, "line": int(number)}


@stateful(output="file string, n long, line long", state="n long")
def number(parsed: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """Number the lines of a file in the order in which they come: 1, 2, 3, …"""
    state["n"] = (state["n"] or 0) + 1
    return {"file": parsed["file"], "n": state["n"], "line": parsed["line"]}
