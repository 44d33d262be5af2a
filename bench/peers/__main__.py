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

from . import NAMES, measure, page  # noqa: E402
from .calls import (FLOATS, INPUTS, INPUTS_SHAPE, LENGTH_GOAL, LENGTHS, LONGEST_OF_GOAL, LONGEST_OF_PEERS, QUICK_SHAPES,  # noqa: E402
                    SHAPES, TYPES, Call)

MISSED = 1
ROOT = Path(__file__).resolve().parents[2]
PARTS = ("calls", "inputs", "lengths")


def main():
    arguments = parse()
    report = {"date": datetime.date.today().isoformat(), "processor": processor(),
              "disturbed_kept": arguments.keep_disturbed, "versions": {}, **{part: [] for part in PARTS}}
    try:
        measure_parts(arguments, report)
    finally:  # an interrupted run has its figures too
        if arguments.json:
            Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    if arguments.publish:
        page.publish(report, ROOT / "docs/performance.md", ROOT / "docs/peers")
    return conclude(report, arguments.goals)


def measure_parts(arguments, report):
    with open(arguments.log or os.devnull, "w") as log:
        for threads in arguments.threads if "calls" in arguments.parts else ():
            with field_of(arguments.peers, threads, log, report) as field:
                measure_calls(arguments, field, report["calls"])
        if "inputs" in arguments.parts:
            with field_of(arguments.peers, 1, log, report) as field:
                check_inputs(arguments, field, report["inputs"])
        if "lengths" in arguments.parts:
            measure_lengths(arguments, report, log)


def parse():
    parser = argparse.ArgumentParser(prog="tools/dev peers", description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", metavar="SHAPE", dest="shapes",
                        help="batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal]; may be given several times; default: all of calls.py")
    parser.add_argument("--types", type=names(TYPES), default=TYPES, metavar="LIST", help=f"of {','.join(TYPES)}; default: all")
    parser.add_argument("--threads", type=numbers, default=None, metavar="LIST", help="default: 1 and 2, where there are two CPUs")
    parser.add_argument("--peers", type=names(NAMES), default=NAMES, metavar="LIST", help=f"of {','.join(NAMES)}; Fovea always; default: all")
    parser.add_argument("--parts", type=names(PARTS), default=PARTS, metavar="LIST",
                        help="of calls, inputs that show errors, and lengths of a sequence; default: all")
    parser.add_argument("--quick", action="store_true", help="a few shapes in three minutes")
    parser.add_argument("--goals", action="store_true", help="fail where Fovea is not as much faster than the best peer as calls.py says")
    parser.add_argument("--publish", action="store_true", help="write the tables of docs/performance.md and its plots")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    parser.add_argument("--log", metavar="FILE", help="write what the libraries print there")
    parser.add_argument("--min-time", type=float, default=0.01, metavar="SECONDS", help="of a repetition; default: 0.01")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="for the repetitions of a call; default: 3, with --quick 1")
    parser.add_argument("--keep-disturbed", action="store_true", help="keep repetitions during which other work was on the cores")
    arguments = parser.parse_args()
    if arguments.publish and arguments.keep_disturbed:
        parser.error("--publish: what --keep-disturbed measures is not for a page")
    arguments.shapes = arguments.shapes or (QUICK_SHAPES if arguments.quick else SHAPES)
    arguments.budget = arguments.budget or (1 if arguments.quick else 3)
    arguments.threads = arguments.threads or range(1, min(2, len(measure.ALLOWED)) + 1)
    arguments.peers = ["fovea"] + [name for name in arguments.peers if name != "fovea"]
    try:
        arguments.calls = [call for call in itertools.starmap(Call.parse, itertools.product(arguments.shapes, arguments.types)) if call.exists()]
    except ValueError as error:
        parser.error(str(error))
    if max(arguments.threads) > len(measure.ALLOWED):
        parser.error(f"--threads: this process may use {len(measure.ALLOWED)} CPUs")
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


def field_of(names, threads, log, report):
    field = measure.Field(names, threads, log)
    report["versions"].update(field.said)
    if "fovea" in field.missing:
        sys.exit(f"Fovea cannot be measured: {field.missing['fovea']}")
    return field


def measure_calls(arguments, field, results):
    for call in arguments.calls:
        peers = field.measure(call, arguments.min_time, arguments.budget, arguments.keep_disturbed)
        best, ratio = measure.best_peer(peers)
        results.append({"shape": call.shape, "type": call.type, "threads": field.threads, "best": best, "ratio": ratio,
                        "goal": call.goal(has_bf16_tiles()), "peers": peers})
        say(f"{call} on {field.threads}", peers, f"{ratio:.2f} x {best}" if best else "-")


def check_inputs(arguments, field, results):
    for inputs, type_ in itertools.product(INPUTS, [type_ for type_ in arguments.types if type_ in FLOATS]):
        peers = field.prepare(Call.parse(INPUTS_SHAPE, type_, inputs))
        results.append({"shape": INPUTS_SHAPE, "type": type_, "inputs": inputs, "peers": peers})
        say(f"{inputs}, {type_}", peers)


def measure_lengths(arguments, report, log):
    """Each in processes of its own, so that memory is counted from the start."""
    for keys in LENGTHS[: 2 if arguments.quick else None]:
        call = Call.parse(f"1,1,1,{keys},{keys},64", "f32")
        with field_of(["fovea"], 1, log, report) as field:
            growth = field.growth(call)
        with field_of(arguments.peers if keys <= LONGEST_OF_PEERS else ["fovea"], 1, log, report) as field:
            peers = field.measure(call, arguments.min_time, arguments.budget, arguments.keep_disturbed)
        report["lengths"].append({"keys": keys, "bytes": growth, "peers": peers})
        say(f"{keys} keys", peers, f"{growth / 1e6:.2f} MB")


def say(what, peers, more=""):
    print(f"{what}: {more}  ({', '.join(f'{name} {in_short(peer)}' for name, peer in peers.items())})", file=sys.stderr, flush=True)


def in_short(peer):
    if "seconds" in peer:
        return f"{peer['seconds'] * 1e6:.1f} us"
    if "failure" in peer:
        return "FAILED"
    if any("wrong" in way for way in peer.get("ways", {}).values()):
        return "WRONG"
    return "right" if peer.get("way") else "-"


def conclude(report, goals):
    """The exit status. A peer that is wrong or fails is in the report; Fovea has to be right."""
    wrong = [f"Fovea: {result['shape']} {result['type']} {result.get('inputs', '')}: {result['peers']['fovea']}"
             for result in report["calls"] + report["inputs"] if in_short(result["peers"]["fovea"]) in ("FAILED", "WRONG", "-")]
    missed = [f"goal {result['goal']}: {result['shape']} {result['type']} on {result['threads']}: {result['ratio']:.2f} x {result['best']}"
              for result in report["calls"] if result["goal"] and result["best"] and result["ratio"] < result["goal"]]
    missed += [f"goal {LENGTH_GOAL}: time over queries * keys at {keys} keys differs from the median by {difference:.1%}"
               for keys, difference in measure.length_differences(report["lengths"]) if keys <= LONGEST_OF_GOAL and abs(difference) > LENGTH_GOAL]
    for line in wrong + (missed if goals else []):
        print(line, file=sys.stderr)
    return MISSED if wrong or (goals and missed) else 0


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
