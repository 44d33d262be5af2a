"""Fovea beside the libraries that a user would pick instead: each call computed by all of them in turn, checked, timed, and compared.

usage: python -m peers [options], from bench/; tools/dev peers installs all that it needs and runs it
"""
import argparse
import datetime
import itertools
import json
import os
import sys
from pathlib import Path

# Read when NumPy is loaded. The probe is of one thread; and an environment that makes OpenBLAS take kernels of an older CPU would slow a peer.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
for variable in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"):
    os.environ.pop(variable, None)

from . import NAMES, measure  # noqa: E402
from .calls import QUICK_SHAPES, SHAPES, TYPES, Call  # noqa: E402

MISSED, USAGE = 1, 2


def main():
    arguments = parse()
    report = {"date": datetime.date.today().isoformat(), "processor": processor(), "cpus": os.cpu_count(), "results": []}
    with open(arguments.log, "w") if arguments.log else open(os.devnull, "w") as log:
        for threads in arguments.threads:
            compare(arguments, threads, report, log)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    return conclude(report, arguments.goals)


def parse():
    parser = argparse.ArgumentParser(prog="tools/dev peers", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", metavar="SHAPE", dest="shapes",
                        help="batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal]; may be given several times; default: all of calls.py")
    parser.add_argument("--types", type=names(TYPES), default=TYPES, metavar="LIST", help=f"of {','.join(TYPES)}; default: all")
    parser.add_argument("--threads", type=numbers, default=None, metavar="LIST", help="default: 1 and 2, where there are two CPUs")
    parser.add_argument("--peers", type=names(NAMES), default=NAMES, metavar="LIST", help=f"of {','.join(NAMES)}; Fovea always; default: all")
    parser.add_argument("--quick", action="store_true", help="a few shapes in three minutes")
    parser.add_argument("--goals", action="store_true", help="fail where Fovea is not as much faster than the best peer as calls.py says")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--log", metavar="FILE", help="write what the libraries print there")
    parser.add_argument("--min-time", type=float, default=0.01, metavar="SECONDS", help="of a repetition; default: 0.01")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for the repetitions of a call; default: 3, with --quick 1")
    parser.add_argument("--keep-disturbed", action="store_true", help="keep repetitions during which other work was on the cores")
    arguments = parser.parse_args()
    arguments.shapes = arguments.shapes or (QUICK_SHAPES if arguments.quick else SHAPES)
    arguments.budget = arguments.budget or (1 if arguments.quick else 3)
    arguments.threads = arguments.threads or range(1, min(2, len(os.sched_getaffinity(0))) + 1)
    arguments.peers = ["fovea"] + [name for name in arguments.peers if name != "fovea"]
    try:
        arguments.calls = [call for call in itertools.starmap(Call.parse, itertools.product(arguments.shapes, arguments.types)) if call.exists()]
    except ValueError as error:
        parser.error(str(error))
    if max(arguments.threads) > len(os.sched_getaffinity(0)):
        parser.error(f"--threads: this process may use {len(os.sched_getaffinity(0))} CPUs")
    return arguments


def names(known):
    def parse_names(text):
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"'{unknown[0]}' is none of {', '.join(known)}")
        return found

    return parse_names


def numbers(text):
    found = [int(number) for number in text.split(",")]
    if min(found) < 1:
        raise argparse.ArgumentTypeError("starts at 1")
    return found


def compare(arguments, threads, report, log):
    field = measure.Field(arguments.peers, threads, log)
    report["versions"] = {**field.missing, **field.versions}
    try:
        for call in arguments.calls:
            results = field.measure(call, arguments.min_time, arguments.budget, arguments.keep_disturbed)
            best, ratio = measure.best_peer(results)
            result = {"shape": call.shape, "type": call.type, "threads": threads, "best": best, "ratio": ratio,
                      "goal": call.goal(has_bf16_tiles()), "peers": results}
            report["results"].append(result)
            print(progress(result), file=sys.stderr, flush=True)
    finally:
        field.close()


def progress(result):
    times = [f"{name} {of_time(peer)}" for name, peer in result["peers"].items()]
    ratio = f"{result['ratio']:.2f} x {result['best']}" if result["ratio"] else "-"
    return f"{result['shape']} {result['type']} on {result['threads']}: {ratio}  ({', '.join(times)})"


def of_time(peer):
    if "seconds" in peer:
        return f"{peer['seconds'] * 1e6:.1f} us"
    if "failure" in peer:
        return "FAILED"
    return "WRONG" if any("wrong" in way for way in peer.get("ways", {}).values()) else "-"


def conclude(report, goals):
    """The exit status: 0, MISSED."""
    fovea = [result for result in report["results"] if "seconds" not in result["peers"]["fovea"]]
    for result in fovea:
        print(f"Fovea was not measured: {result['shape']} {result['type']}: {result['peers']['fovea']}", file=sys.stderr)
    missed = [result for result in report["results"] if result["goal"] and result["ratio"] and result["ratio"] < result["goal"]]
    for result in missed if goals else []:
        print(f"missed: {result['shape']} {result['type']} on {result['threads']}: {result['ratio']:.2f} x {result['best']}, "
              f"goal {result['goal']}", file=sys.stderr)
    return MISSED if fovea or (goals and missed) else 0


def cpu_words():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    return dict(reversed([line.split("\t: ", 1) for line in (line.replace("\t\t", "\t") for line in lines) if "\t: " in line]))


def processor():
    return cpu_words().get("model name", "unknown processor")


def has_bf16_tiles():
    return "amx_bf16" in cpu_words().get("flags", "").split()


if __name__ == "__main__":
    sys.exit(main())
