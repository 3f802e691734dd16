"""Who asked an API server for what: its audit log, in the words of roles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Asked:
    """One answered request of ``uid``. ``resource`` has its subresource behind a slash, ``name`` is
    empty where none is named; whoever watches one object names it."""

    uid: str
    verb: str
    resource: str
    name: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class Audit:
    """The log of one API server, in ``folder``."""

    folder: Path

    def arguments(self, **who: Sequence[str]) -> tuple[str, ...]:
        """What the API server is started with; ``who`` is noted, by ``users`` or ``userGroups``."""
        policy = self.folder / "audit.yaml"
        noted = {"level": "Metadata", "omitStages": ["RequestReceived"]}
        rules = [{**noted, **{key: list(names) for key, names in who.items()}}, {"level": "None"}]
        kind = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
        policy.write_text(json.dumps({**kind, "rules": rules}))
        return f"--audit-policy-file={policy}", f"--audit-log-path={self.log}"

    def asked(self) -> Iterator[Asked]:
        """Requests for resources; one that lasts, as a watch does, from its first answer on."""
        seen: set[str] = set()
        # Only the last line can be half of one.
        for line in self.log.read_text().split("\n")[:-1]:
            one = json.loads(line)
            if one["auditID"] not in seen and "objectRef" in one:
                seen.add(one["auditID"])
                yield _asked(one)

    @property
    def log(self) -> Path:
        return self.folder / "audit.log"


def _asked(one: dict[str, Any]) -> Asked:
    what, note = one["objectRef"], one.get("annotations", {})
    return Asked(
        one["user"].get("uid", ""),
        one["verb"],
        "/".join(filter(None, (what.get("resource"), what.get("subresource")))),
        what.get("name", ""),
        note.get("authorization.k8s.io/decision") != "forbid",
    )
