"""A process with one library in it, so that none disturbs another: python -m peers.worker NAME THREADS, from bench/.

Reads requests and writes answers, a line of JSON each:

    {"prepare": [shape, type, inputs], "tensors": path, "min_time": s}
                    every way that is right is timed: {"ways": {name: {"error", "seconds" or "wrong" or "unsupported": why}}, "way": the fastest},
                    or {"unsupported": why}; a wrong way's error is null where it is no number
    {"time": true}  one repetition of the fastest: {"seconds": of a call, "waiting": share of the time}
    {"grow": [shape, type, inputs], "tensors": path}
                    {"bytes": by which the process's memory grew at most during the first call of its life, beside the tensors}
"""
import importlib
import itertools
import json
import math
import os
import re
import sys
import time
from pathlib import Path

from . import Unsupported
from .calls import Call
from .oracle import Oracle
from .tensors import Tensors

TRIALS = 3  # of a way, to choose the fastest
HOPELESS = 3  # times the fastest way so far: not tried again
LONG = 10  # times the least time of a repetition: such a call needs no trials and no call before it to fill the caches


def main():
    name, threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer

    def answer(value):
        answers.write(json.dumps(value) + "\n")

    try:
        library = importlib.import_module(f".{name}", __package__)
        answer({"version": library.version(threads)})
    except (ImportError, Unsupported) as error:
        answer({"unsupported": f"{error}"})
        return
    timed = None
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            timed = None  # the last call's memory is free before this one's is taken
            call = Call.parse(*request["prepare"])
            result, timed = prepare(library, call, Tensors.load(call, request["tensors"]), request["min_time"])
            answer(result)
        elif "grow" in request:
            answer({"bytes": growth(library, Tensors.load(Call.parse(*request["grow"]), request["tensors"]))})
        else:
            seconds, waiting = timed()
            answer({"seconds": seconds, "waiting": waiting})


def prepare(library, call, tensors, min_time):
    """What is to be answered, and a function that times the fastest way that is right."""
    try:
        offers = library.offers(call, tensors)
    except Unsupported as error:
        return {"unsupported": str(error)}, None
    oracle, ways, best, prepared = Oracle(tensors), {}, None, None
    for name, make in offers.items():
        ways[name] = {}
        try:
            tensors.out[...] = 0  # no other way's result is taken for this one's
            run, result, *kept = make()
            first, _ = repetition(run, 0, math.inf)
            ways[name]["error"], right = oracle.error(result())
            if not right:
                ways[name]["wrong"] = True
                continue
            hopeless = HOPELESS * ways[best]["seconds"] if best else math.inf
            decided = first > LONG * min_time and (len(offers) == 1 or first > hopeless)
            seconds = first if decided else least_seconds(run, min_time, hopeless)
        except Exception as error:  # whatever a library raises is its answer
            ways[name]["unsupported"] = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
            continue
        ways[name]["seconds"] = seconds
        if best is None or seconds < ways[best]["seconds"]:
            best, prepared = name, (run, result, kept)

    def timed(buffers=(tensors, prepared)):  # libraries point to them and do not own them
        return repetition(prepared[0], min_time, ways[best]["seconds"])

    return {"ways": ways, "way": best}, timed


def growth(library, tensors):
    make = next(iter(library.offers(tensors.call, tensors).values()))
    run, _, *kept = make()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    run()
    return memory("VmHWM") - before


def memory(name):
    return int(re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[1]) * 1024


def least_seconds(run, min_time, hopeless):
    seconds = repetition(run, 0, math.inf)[0]
    for _ in range(TRIALS):
        if seconds > min(hopeless, LONG * min_time):
            break
        seconds = min(seconds, repetition(run, min_time, seconds)[0])
    return seconds


def repetition(run, min_time, seconds):
    """Seconds of a call, and for which share of the time a thread of this process waited for a core. seconds: of a call, about."""
    count = max(1, math.ceil(min_time / seconds))
    if seconds < LONG * min_time:
        run()
    waited, start = waiting_seconds(), time.perf_counter()
    for _ in itertools.repeat(None, count):
        run()
    elapsed = time.perf_counter() - start
    return elapsed / count, (waiting_seconds() - waited) / elapsed


def waiting_seconds():
    """That the threads of this process could have run but were given no core; 0 where the OS does not say."""
    nanoseconds = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        try:
            nanoseconds += int(task.read_text().split()[1])
        except OSError:
            pass  # the thread has ended
    return 1e-9 * nanoseconds


if __name__ == "__main__":
    main()
