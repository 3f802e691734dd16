"""User code that waits in the second pass as long as a file is there, named by the input."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import psutil

from millrace import row


@row(output="word string, folder string")
def split(line):
    *words, folder = line["value"].split()
    for word in words:
        yield {"word": word, "folder": folder}


@row(output="word string, folder string")
def split_at_random(line):
    *words, folder = line["value"].split()
    for _ in words:
        yield {"word": f"r{random.randrange(50)}", "folder": folder}


@row(output="word string")
def pause(word):
    folder = Path(word["folder"])
    if (folder / "gate").exists():
        (folder / "waiting").touch()
        while (folder / "gate").exists():
            time.sleep(0.02)
    return {"word": word["word"]}


@row(output="word string")
def end_executor(line):
    """The JVM that this worker belongs to goes with it, every time."""
    process = psutil.Process()
    while process.name() != "java":
        process = process.parent()
    process.kill()
    time.sleep(60)
    return {"word": line["value"]}


@row(output="word string")
def meet(line):
    """Behind a word may stand a folder: it waits there until another process has come, too."""
    word, _, folder = line["value"].partition(" ")
    if folder:
        here = Path(folder)
        (here / f"{os.getpid()}.there").touch()
        until_s = time.monotonic() + 30
        while len(list(here.glob("*.there"))) < 2:
            if time.monotonic() > until_s:
                raise TimeoutError("nobody else has come")
            time.sleep(0.01)
    return {"word": word}


@row(output="word string")
def rest(line):
    """Takes long over each line."""
    time.sleep(120)
    return {"word": line["value"]}
