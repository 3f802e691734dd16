"""When a cold start has reached what."""

import re
import time

import psutil

from millrace.engine.jobs.starttimes import StartTimes


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
    lived_s = time.time() - psutil.Process().create_time()
    assert all(lived_s - 10 < float(at_s) < lived_s + 0.01 for _, at_s in found)
