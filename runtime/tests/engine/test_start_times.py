"""When a cold start has reached what."""

import re
import subprocess
import sys
import time

import psutil

from millrace.engine.jobs.starttimes import StartTimes, lived_s


def test_steps_are_told_in_their_order_since_the_process_began() -> None:
    mine, others = StartTimes(), StartTimes()
    mine.reached("first")
    time.sleep(0.02)
    others.reached("second")
    time.sleep(0.02)
    mine.reached("third")
    mine.reached("first")
    found = re.findall(r"(\w+) (\d+\.\d\d) s", mine.text(others))
    assert [step for step, _ in found] == ["first", "second", "third"]
    lived = lived_s()
    assert all(lived - 10 < float(at_s) < lived + 0.01 for _, at_s in found)


def test_a_process_lives_since_it_was_started() -> None:
    script = "from millrace.engine.jobs.starttimes import lived_s; print(lived_s())"
    began_s = time.monotonic()
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
    # The clock of the kernel's ticks is a hundredth of a second coarse.
    assert 0 < float(said.stdout) <= time.monotonic() - began_s + 0.02
    assert abs(lived_s() - (time.time() - psutil.Process().create_time())) < 2
