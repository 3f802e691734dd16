"""What a check found: the rule that was broken, how that showed, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from millrace.errors import MillraceError


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule (of ``SINK_RULES`` or ``SOURCE_RULES``), what was seen, and the remedy."""

    rule: str
    seen: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.seen}\n    remedy: {self.remedy}"


class ConformanceError(MillraceError):
    """A source or sink that breaks rules; ``findings`` says which, one for each check."""

    def __init__(self, what: str, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        rules = "rule" if len(findings) == 1 else "rules"
        listed = "\n".join(f"  {finding}" for finding in findings)
        super().__init__(f"{what} breaks {len(findings)} {rules}:\n{listed}")

    @property
    def rules(self) -> list[str]:
        """Names of the rules that are broken, in the order in which that was found."""
        return list(dict.fromkeys(finding.rule for finding in self.findings))


class BrokenError(MillraceError):
    """Ends a check whose rule is broken."""

    def __init__(self, rule: str, seen: str) -> None:
        super().__init__(seen)
        self.rule = rule


class UnusableError(MillraceError):
    """The kit cannot try what it was given; says what it needs."""


@dataclass(frozen=True, slots=True)
class Check:
    """One trial: ``run`` raises ``BrokenError`` for one of ``rules``; ``basic`` ones come first,
    and where one of them fails the others would only say so again.
    """

    run: Callable[[], None]
    rules: tuple[str, ...]
    basic: bool = False


def findings_of(
    checks: Sequence[Check], remedies: Mapping[str, str], only: Collection[str] | None
) -> list[Finding]:
    """Run the checks, or those for the rules ``only``; each ends with its first finding.

    Raises ``UnusableError`` for a rule that does not exist.
    """
    unknown = sorted(set(only or ()) - remedies.keys())
    if unknown:
        raise UnusableError(f"only: {unknown[0]!r} is no rule; the rules are {', '.join(remedies)}")
    wanted = [
        check
        for check in checks
        if check.basic or only is None or not set(only).isdisjoint(check.rules)
    ]
    found = [finding for check in wanted if check.basic for finding in _tried(check, remedies)]
    if found:
        return found
    return [f for check in wanted if not check.basic for f in _tried(check, remedies)]


def _tried(check: Check, remedies: Mapping[str, str]) -> list[Finding]:
    try:
        check.run()
    except BrokenError as broken:
        return [Finding(broken.rule, str(broken), remedies[broken.rule])]
    return []
