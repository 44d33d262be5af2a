"""Takes turns between Fovea and its peers."""
import contextlib
import os
import statistics
import tempfile
import time

import numpy as np

from .process import Failure, Worker
from .tensors import Tensors

ALLOWED = sorted(os.sched_getaffinity(0))  # CPUs of this process
LEAST_PROBE = 0.94  # of the fastest: slower, and another machine's or process's work is on this core
MOST_WAITING = 0.02  # of the time of a repetition and a thread, without a core
MOST_WAITING_ALONE = 0.5  # where the figure is the time on the core, from which the waiting is taken off
LEAST_ROUNDS, MOST_ROUNDS = 3, 15  # undisturbed ones that a figure is made of
PATIENCE = 3  # times as many rounds at most, where some are disturbed
FAR_BEHIND = 3  # times the fastest peer: no more than the fewest rounds are made of such a library
PROBE_SIZE, PROBE_CALLS = 128, 50  # three matrices of 64 KiB: in the second-level cache, about a millisecond


def probe():
    """Calls a second of a small matrix product."""
    a = np.ones((PROBE_SIZE, PROBE_SIZE), np.float32)
    out = np.empty_like(a)
    start = time.perf_counter()
    for _ in range(PROBE_CALLS):
        np.matmul(a, a, out=out)
    return PROBE_CALLS / (time.perf_counter() - start)


def identity(call):
    return call.shape, call.type, call.inputs


@contextlib.contextmanager
def saved_tensors(call):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "tensors.npz")
        Tensors.random(call).save(path)
        yield path


class Field:
    """Fovea and its peers, each a process, on so many threads."""

    def __init__(self, names, threads, log):
        self.cpus = ALLOWED[-threads:]  # the last ones: the OS likes the first ones for its own work
        os.sched_setaffinity(0, self.cpus)  # the probe is to run where the libraries do
        self.threads, self.log, self.names = threads, log, names
        self.workers, self.versions, self.missing = {}, {}, {}
        for name in names:
            self.start(name)

    def start(self, name):
        try:
            worker = Worker(name, self.threads, self.cpus, self.log)
        except Failure as failure:
            self.missing[name] = str(failure)
            return
        if "version" in worker.greeting:
            self.workers[name], self.versions[name] = worker, worker.greeting["version"]
        else:
            self.missing[name] = worker.greeting["unsupported"]
            worker.close()

    @property
    def said(self):
        """Of each library its name and version, or why it is missing."""
        return {**self.missing, **self.versions}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for worker in self.workers.values():
            worker.close()

    def measure(self, call, min_time, budget, keep_disturbed):
        """{name: {"ways", "way", "error", "seconds", "least", "spread", "ratios"} or {"unsupported" or "failure": why} or {"ways" alone}}"""
        results = self.prepare(call, min_time)
        ready = [name for name in self.names if results[name].get("way")]
        self.take_turns(ready, results, min_time, budget, keep_disturbed)
        return results

    def prepare(self, call, min_time=0):
        """Every library computes it in each of its ways, which are checked, and timed to find the fastest one."""
        with saved_tensors(call) as path:
            prepared = {name: self.ask(name, prepare=identity(call), tensors=path, min_time=min_time) for name in list(self.workers)}
        return {name: prepared.get(name, {"unsupported": self.missing.get(name)}) for name in self.names}

    def growth(self, call):
        """Bytes by which Fovea's process grows in the first call of its life."""
        with saved_tensors(call) as path:
            return self.ask("fovea", grow=identity(call), tensors=path)["bytes"]

    def ask(self, name, **request):
        try:
            return self.workers[name].ask(**request)
        except Failure as failure:
            del self.workers[name]
            self.start(name)
            return {"failure": str(failure)}

    def take_turns(self, ready, results, min_time, budget, keep_disturbed):
        wanted = self.rounds_wanted(ready, results, min_time, budget)
        rounds, kept = [], {name: [] for name in ready}
        while due := [name for name in ready if len(kept[name]) < wanted[name] and len(rounds) < PATIENCE * wanted[name]]:
            asked = [name for name in ready if name in due or name == "fovea"]  # a ratio is taken within a round
            turn = {"probe": probe(), **{name: self.ask(name, time=True) for name in asked}}
            for name in [name for name in asked if "failure" in turn[name]]:
                results[name] = turn[name]
                ready.remove(name)
            rounds.append(turn)
            kept = {name: self.kept(name, rounds, keep_disturbed) for name in ready}
        for name in ready:
            if len(kept[name]) < LEAST_ROUNDS:
                tried = sum(name in turn for turn in rounds)
                results[name]["failure"] = f"the machine was too busy: {len(kept[name])} of {tried} rounds undisturbed"
                continue
            seconds = [self.seconds(turn[name]) for turn in kept[name]]
            lower, median, upper = np.percentile(seconds, (25, 50, 75))
            results[name].update(error=chosen(results[name])["error"], seconds=median, least=min(seconds), spread=(upper - lower) / median,
                                 ratios=[turn[name]["seconds"] / turn["fovea"]["seconds"] for turn in kept[name] if "fovea" in ready])

    def rounds_wanted(self, ready, results, min_time, budget):
        """Of each library, as many as the budget has room for; of those that are far behind, the fewest."""
        seconds = {name: chosen(results[name])["seconds"] for name in ready}
        fastest = min((seconds[name] for name in ready if name != "fovea"), default=0)
        contenders = [name for name in ready if name == "fovea" or seconds[name] <= FAR_BEHIND * fastest]
        of_a_round = sum(2 * max(min_time, seconds[name]) for name in contenders)
        most = int(np.clip(budget / max(of_a_round, 1e-9), LEAST_ROUNDS, MOST_ROUNDS))
        return {name: most if name in contenders else LEAST_ROUNDS for name in ready}

    def kept(self, name, rounds, keep_disturbed):
        """Those in which neither this library nor Fovea, which it is compared with, had to wait for other work."""
        fastest = max(turn["probe"] for turn in rounds)
        most = MOST_WAITING_ALONE if self.alone else MOST_WAITING * self.threads
        return [turn for turn in rounds if name in turn and (keep_disturbed or (turn["probe"] >= LEAST_PROBE * fastest and all(
            turn[each].get("waiting", 0) <= most for each in ("fovea", name) if each in turn)))]

    @property
    def alone(self):
        """Fovea by itself, on one thread, has the figure of its time on the core, which other work changes little."""
        return self.names == ["fovea"] and self.threads == 1

    def seconds(self, timed):
        return timed["seconds"] * (1 - timed["waiting"] if self.alone else 1)


def chosen(result):
    return result["ways"][result["way"]]


def best_peer(results):
    """The name of the fastest peer that is right, and how many times Fovea's time it takes, the median over the rounds."""
    peers = {name: result for name, result in results.items() if name != "fovea" and "seconds" in result}
    if not peers or "seconds" not in results.get("fovea", {}):
        return None, None
    name = min(peers, key=lambda name: peers[name]["seconds"])
    return name, statistics.median(peers[name]["ratios"])


def length_differences(lengths):
    """(keys, by which share Fovea's time over queries * keys is longer than the median)."""
    each = [(result["keys"], result["peers"]["fovea"]["seconds"] / result["keys"] ** 2) for result in lengths
            if "seconds" in result["peers"]["fovea"]]
    middle = statistics.median(time for _, time in each) if each else 0
    return [(keys, time / middle - 1) for keys, time in each]
