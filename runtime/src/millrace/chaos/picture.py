"""The campaign over time: windows as they are sealed, kills, and how long each took to recover."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from millrace.chaos.plan import ChaosError
from millrace.chaos.report import Report, kinds_of

KINDS = (".svg", ".png", ".pdf")


def check(path: Path) -> None:
    """Whether a picture can be drawn there, as far as can be known before a campaign.

    Raises ``ChaosError`` without matplotlib, for another ending, and without the folder.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ChaosError(
            "--picture needs matplotlib: .venv/bin/pip install matplotlib, or leave it out"
        )
    if path.suffix not in KINDS:
        raise ChaosError(f"--picture {path}: give it an ending of {', '.join(KINDS)}")
    if not os.access(path.parent, os.W_OK) or path.is_dir():
        raise ChaosError(f"--picture {path}: cannot be written there; name another file")


def draw(report: Report, path: Path) -> None:
    """Write a picture; its kind is that of the name's ending. Raises ``ChaosError``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    course = report.course
    kinds = kinds_of(course.kills)
    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(10, 5), height_ratios=(3, max(1, len(kinds)))
    )
    try:
        above.step([at for at, _ in course.sealed], [w for _, w in course.sealed], where="post")
        above.set_ylabel("last sealed window")
        above.set_title(
            f"{report.topology}: {len(course.kills)} kills, {report.total('lost')} lost, "
            f"{report.total('duplicated')} duplicated, {report.total('wrong')} wrong"
        )
        for kill in course.kills:
            row = kinds.index(kill.strike.label)
            colour = f"C{row + 1}"
            above.axvline(kill.at_s, color=colour, alpha=0.4, linewidth=1)
            below.barh(row, kill.recovery_s or 0, left=kill.at_s, height=0.6, color=colour)
            below.plot(kill.at_s, row, "|", color="black", markersize=14)
        below.set_yticks(range(len(kinds)), kinds)
        below.set_xlabel("seconds; a bar is the time from a kill to the next sealed window")
        figure.tight_layout()
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ChaosError(f"--picture {path}: cannot be drawn ({error})") from error
    finally:
        pyplot.close(figure)
