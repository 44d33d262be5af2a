#!/usr/bin/env python3
"""Where the time of a call goes, and how far each part is from its limit: fovea_bench under perf, a call of each kind at a time.

usage: bench/profile.py BENCH [--isa avx512,avx2] [--json FILE] [--markdown PAGE]

BENCH is the fovea_bench to run. Samples are taken by the clock of the processor, which virtual machines have too; where perf does not work,
callgrind counts the instructions of avx2 instead, which are not time. The table goes between <!-- profile: begin --> and
<!-- profile: end --> of the page.
"""
import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from report import put, roof

KINDS = (
    ("long", "1,8,8,4096,4096,64"),
    ("causal, shared heads", "1,32,8,2048,2048,128 causal"),
    ("dims of 256", "1,8,8,1024,1024,256"),
    ("short", "1,8,8,64,64,64"),
    ("f16", "8,12,12,512,512,64 f16"),
    ("bf16", "8,12,12,512,512,64 bf16"),
    ("one query", "1,8,8,1,32768,128"),
    ("one query, group of 4", "1,32,8,1,32768,128"),
    ("one query, group of 8, bf16", "1,64,8,1,32768,128 bf16"),
    ("one query, group of 4, i8", "1,32,8,1,32768,128 i8"),
    ("tiny", "1,1,1,1,10,512"),
)
# By the name of the function, without its template arguments; the first that fits. The kernels keep these out of line.
PARTS = {
    "product with V": r"::(ValueTile|FewRowsValues|FewValues|multiply_few_values|multiply_values)\b",
    "scores and exponentials": r"::(exponentiate\w*|score\w*|finish_tile|ScoresByDims|BlockScores)\b",
    "packing and conversion": r"^fovea::\w+::anonymous::(Task::(begin_panel|pack\w*|load\w*)|(load|store)_\w+)",
    "the rest of the kernel": r"^fovea::\w+::anonymous::",
    "checks, plan, dispatch": r"^fovea",
}
# Making the tensors is no part of a call, where a cache is filled by fovea_kv_append() neither.
OF_THE_BENCH = r"^(?!fovea)|^fovea::(bench|reference)\b|append|for_each_part|write_row|load_floats|quantise|scale_i8|largest_magnitude"
SAMPLES_A_SECOND = 4000
TINY = 1e-5  # seconds of a call that its multiply-adds are a small part of
PRODUCTS = ("scores and exponentials", "product with V")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench", type=Path, help="fovea_bench")
    parser.add_argument("--isa", default="avx512,avx2", help="levels, comma-separated; default: %(default)s")
    parser.add_argument("--shape", action="append", dest="shapes", help="one that fovea_bench knows; repeatable; default: one of each kind")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--markdown", metavar="PAGE", help="put the table between the marks of that page")
    arguments = parser.parse_args()
    profile = choose_tool()
    kinds = [("", shape) for shape in arguments.shapes] if arguments.shapes else KINDS
    results = []
    for isa in arguments.isa.split(",") if profile is sampled else ["avx2"]:
        for kind, shape in kinds:
            if isa.endswith("_bf16") and not shape.endswith("bf16"):
                continue  # such a level differs from its base in products of bfloat16 alone
            print(f"{isa}: {shape}", file=sys.stderr, flush=True)
            report, counts = profile([arguments.bench, "--no-peer", "--isa", isa, "--shape", shape])
            results.append({"kind": kind, "shape": shape, "isa": isa, "counted": profile.__name__, "parts": parts(counts), "report": report})
    text = section(results)
    print(text)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.markdown:
        put(arguments.markdown, {"profile": text})


def choose_tool():
    """perf, if this machine lets it take samples."""
    with tempfile.TemporaryDirectory() as folder:
        if shutil.which("perf") and run(["perf", "record", "-q", "-e", "cpu-clock", "-o", f"{folder}/samples", "--", "true"]).returncode == 0:
            return sampled
    if shutil.which("valgrind"):
        print("perf takes no samples here: callgrind counts instructions instead", file=sys.stderr)
        return instructions
    sys.exit("a profile needs perf (Debian's linux-perf) and its permission to take samples (kernel.perf_event_paranoid), or else valgrind")


def run(command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def measure(command, folder):
    """Runs fovea_bench under a tool; the report of its one level, with the head of the whole. One without a figure, for lack of rest, has its parts nevertheless."""
    path = Path(folder, "report.json")
    done = run([*command, "--json", str(path)])
    report = json.loads(path.read_text()) if path.exists() else {"levels": [{}]}
    (level,) = report.pop("levels")
    level = {**report, **level}
    if not any("fovea" in result for result in level.get("results", [])):
        sys.exit(f"{' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")
    return level


def sampled(bench):
    """The report, and samples by function."""
    with tempfile.TemporaryDirectory() as folder:
        samples = f"{folder}/samples"
        report = measure(["perf", "record", "-q", "-e", "cpu-clock", "-F", str(SAMPLES_A_SECOND), "-o", samples, "--", *bench, "--min-time", "0.1"],
                         folder)
        return report, of_perf(run(["perf", "report", "-i", samples, "--stdio", "--no-children", "-F", "sample,symbol", "-t", "\t"],
                                   check=True).stdout)


def instructions(bench):
    """The report, and instructions by function, of the bench and of its child, which measures the level."""
    with tempfile.TemporaryDirectory() as folder:
        report = measure(["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={folder}/counts.%p", *bench, "--keep-disturbed",
                          "--min-time", "0.0001", "--repetitions", "3"], folder)
        counts = collections.Counter()
        for path in Path(folder).glob("counts.*"):
            counts += of_callgrind(run(["callgrind_annotate", "--threshold=100", str(path)], check=True).stdout)
        return report, counts


def of_perf(text):
    """Lines of: samples, tab, [.] function."""
    counts = collections.Counter()
    for count, symbol in re.findall(r"^\s*(\d+)\s*\t\[.\] (.*?)\s*$", text, re.MULTILINE):
        counts[symbol] += int(count)
    return counts


def of_callgrind(text):
    """Lines of: 1,234 (56.78%)  file:function [object]."""
    counts = collections.Counter()
    for count, symbol in re.findall(r"^\s*([\d,]+) \([ \d.]+%\)\s+\S*?:(.*?)(?: \[[^\]]*\])?$", text, re.MULTILINE):
        counts[symbol] += int(count.replace(",", ""))
    return counts


def parts(counts):
    """{part: how many of the counts}, without those of functions that no call runs."""
    found = dict.fromkeys(PARTS, 0)
    for symbol, count in counts.items():
        name = without_arguments(symbol)
        if not re.search(OF_THE_BENCH, name):
            found[next(part for part, pattern in PARTS.items() if re.search(pattern, name))] += count
    return found


def without_arguments(symbol):
    """void fovea::avx2::(anonymous namespace)::Task<Simd>::begin(int) becomes fovea::avx2::anonymous::Task::begin."""
    symbol = symbol.replace("(anonymous namespace)", "anonymous")
    while (shorter := re.sub(r"<[^<>]*>", "", symbol)) != symbol:
        symbol = shorter
    return symbol.split("(")[0].split(" ")[-1]


def section(results):
    text = [f"**{isa}**{'' if counted == 'sampled' else ', instructions instead of time'}\n\n{table(group)}" for (isa, counted), group in
            grouped(results, lambda result: (result["isa"], result["counted"])).items()]
    report = results[0]["report"]
    return "\n\n".join([f"Fovea {report['fovea']}, one thread on {report['processor']}, {report['date']}.", *text])


def grouped(results, key):
    groups = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups


def table(results):
    rows = [f"| call | time | share of the limit | {' | '.join(PARTS)} |", "|---|---|---|" + "---|" * len(PARTS)]
    for result in results:
        level, (measured,) = result["report"], result["report"]["results"]
        counts = result["parts"]
        whole = sum(counts.values())
        time, limit = "too busy" if result["counted"] == "sampled" else "", ""
        if has_time(result):
            seconds = measured["fovea"]["seconds"]
            time = f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
            limit = f"{share_of_limit(level['peak'], measured):.0%}"
        cells = [cell(part, counts[part] / whole, result) for part in PARTS]
        rows.append(f"| {result['kind']}{': ' * bool(result['kind'])}{result['shape']} | {time} | {limit} | {' | '.join(cells)} |")
    return "\n".join(rows)


def has_time(result):
    return result["counted"] == "sampled" and "share" in result["report"]["results"][0]["fovea"]


def share_of_limit(peak, measured):
    """Of the roofline where a cache is read from memory, else of the peak of its multiply-adds."""
    return measured.get("roofline_share", measured["fovea"]["share"] * peak["fma"] / roof(peak, measured["type"]))


def cell(part, share, result):
    """Its share of the time; and where a call is multiply-adds, what those of the part alone make of the peak of their instruction."""
    (measured,) = result["report"]["results"]
    if part not in PRODUCTS or share == 0 or not has_time(result) or "bandwidth" in measured or measured["fovea"]["seconds"] < TINY:
        return f"{share:.1%}"
    peak = result["report"]["peak"]
    dims = re.match(r"(?:\d+,){5}(\d+)(?:/(\d+))?", measured["shape"])
    dim_k, dim_v = int(dims[1]), int(dims[2] or dims[1])
    of_flops = (dim_k if part == PRODUCTS[0] else dim_v) / (dim_k + dim_v)
    by_dots = part == PRODUCTS[0] and measured["type"] == "bf16" and "bf16_dot" in peak
    rate = of_flops * measured["fovea"]["share"] / share * (peak["fma"] / peak["bf16_dot"] if by_dots else 1)
    return f"{share:.1%} (at {rate:.0%})"


if __name__ == "__main__":
    main()
