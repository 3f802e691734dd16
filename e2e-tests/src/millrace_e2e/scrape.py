"""What docs/metrics.md promises, held against an answer of ``/metrics``.

The document is read here, and none of the product's tables: a metric that both forgot is found by
``test_metrics_catalogue`` alone, one that is named and never set by this.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
EVERY = "Every process"


def documented(*headings: str) -> dict[str, str]:
    """Type by name, of the tables below these headings."""
    found: dict[str, str] = {}
    for heading in headings:
        part = DOCUMENT.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        rows = re.findall(r"^\| `([a-z_]+)` \| (counter|gauge|histogram) \|", part, re.M)
        assert rows, f"{DOCUMENT} has no table below {heading}"
        found |= dict(rows)
    return found


def unset(text: str, *headings: str) -> Sequence[str]:
    """Of the metrics below these headings those that have no value in an answer, by name, and those
    that the answer has beside them."""
    families = list(text_string_to_metric_families(text))
    set_ = {sample.name for family in families for sample in family.samples}
    wanted = documented(*headings)
    missing = [
        name
        for name, kind in wanted.items()
        if (f"{name}_count" if kind == "histogram" else name) not in set_
    ]
    names = {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }
    return [*missing, *sorted(names - set(wanted))]
