"""A function whose result depends on the order of its tuples."""

from __future__ import annotations

from millrace import stateful


@stateful(output="word string, n long", state="n long")
def remember(word, state):
    before = state["n"] or 0
    state["n"] = before + 1
    return {"word": word["word"], "n": before}
