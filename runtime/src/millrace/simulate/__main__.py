"""``python -m millrace.simulate``: run the protocol in a simulated world and report violations."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence

from millrace.simulate.bugs import BUGS
from millrace.simulate.runner import Summary, run_many, run_one

PROGRESS_RUNS = 500

_EPILOG = """\
Each run is made of one seed: topology, faults, poison and every delay. The last line of the
output is a JSON object: runs, violations, failed_seeds and the medians over the runs of actions
(of drivers), crashes (of drivers, state servers, ackers and the ack log) and seals.
Exit code 1 if an invariant was broken, else 0.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, and return the exit code."""
    options = _parser().parse_args(arguments)
    if options.list_bugs:
        for bug in BUGS.values():
            print(f"{bug.name:28} {bug.breaks}")
        return 0
    if options.trace:
        outcome = run_one(options.seed, options.bug, trace=print)
        print(outcome)
        return 1 if outcome.violation is not None else 0
    return _many(options)


def _many(options: argparse.Namespace) -> int:
    summary = Summary()
    began_s = time.monotonic()
    seeds = range(options.seed, options.seed + options.runs)
    for outcome in run_many(seeds, options.bug, options.jobs):
        summary.add(outcome)
        if outcome.violation is not None:
            bug = f" --bug {options.bug}" if options.bug else ""
            _say(f"seed {outcome.seed}: {outcome.violation}")
            _say(f"  replay: python -m millrace.simulate --seed {outcome.seed}{bug} --trace")
            if options.first:
                break
        if summary.runs % PROGRESS_RUNS == 0:
            took_s = time.monotonic() - began_s
            _say(
                f"{summary.runs} of {options.runs} runs, {len(summary.failed)} violations, "
                f"{took_s:.0f} s"
            )
    print(json.dumps(summary.document()))
    return 1 if summary.failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m millrace.simulate",
        description="Run the production protocol against simulated servers, sinks, network and "
        "crashes, and check its invariants after every action.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=1000, help="number of runs (default 1000)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first run (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    parser.add_argument("--bug", choices=sorted(BUGS), help="switch a deliberate bug on")
    parser.add_argument("--first", action="store_true", help="stop at the first violation")
    parser.add_argument(
        "--trace", action="store_true", help="one run, with everything that happens in it"
    )
    parser.add_argument("--list-bugs", action="store_true", help="name the deliberate bugs")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
