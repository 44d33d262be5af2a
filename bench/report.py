#!/usr/bin/env python3
"""Puts the figures of a report of fovea_bench as Markdown tables between the marks of the pages named.

usage: bench/report.py REPORT.json docs/performance.md README.md

The marks are lines of their own: <!-- measured: begin --> and <!-- measured: end --> around the shapes; "decode", "features" and "types" in
place of "measured" around those of that set. What the report does not have is left as it is.
"""
import argparse
import json
import sys
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="what fovea_bench --json wrote")
    parser.add_argument("pages", nargs="+", help="Markdown files with the marks")
    arguments = parser.parse_args()
    with open(arguments.report) as file:
        report = json.load(file)
    if report["disturbed_kept"]:
        sys.exit("the report was made with --keep-disturbed or --quick: its figures are not for a page")
    sections = {}
    for name, make, decode in (("measured", table, False), ("decode", decode_table, True)):
        parts = [{**level, "results": [r for r in level.get("results", []) if r["decode"] == decode]}
                 for level in report["levels"]]
        if any(part["results"] for part in parts):
            sections[name] = "\n\n".join([head(report)] + [make(part) for part in parts])
    for name in ("features", "types"):
        levels = [level for level in report["levels"] if comparisons(level, name)]
        if levels:
            sections[name] = comparison_section(report, name, levels)
    for page in arguments.pages:
        content = Path(page).read_text()
        found = {name: text for name, text in sections.items() if f"<!-- {name}: begin -->" in content}
        if not found:
            sys.exit(f"{page}: has no marks for any of: {', '.join(sections) or 'nothing measured'}")
        put(page, found)


def put(page, sections):
    """Each text between the marks of its name, all of them or none."""
    content = Path(page).read_text()
    for name, text in sections.items():
        begin, end = (f"<!-- {name}: {edge} -->" for edge in ("begin", "end"))
        if content.count(begin) != 1 or content.count(end) != 1:
            sys.exit(f"{page}: needs {begin} and {end} once each")
        before, rest = content.split(begin)
        content = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    Path(page).write_text(content)


def head(report):
    peer = f", beside {report['peer']}" if "peer" in report else ""
    return f"Fovea {report['fovea']}{peer}, f32, {report['threads']} thread(s) on {report['processor']}, {report['date']}."


def comparisons(level, name):
    return [comparison for comparison in level.get("comparisons", []) if comparison["set"] == name]


def comparison_section(report, name, levels):
    parts = [f"Fovea {report['fovea']}, {report['threads']} thread(s) on {report['processor']}, {report['date']}; "
             "spread of the ratio in parentheses."]
    parts += [f"{level['isa']}: {level['peak']['bf16_dot'] / level['peak']['fma']:.2f} × the multiply-adds of f32, as pairs of bf16, in a loop "
              "of nothing else." for level in levels if name == "types" and "bf16_dot" in level["peak"]]
    parts += [comparison_table(levels, of_shape) for of_shape in zip(*(comparisons(level, name) for level in levels))]
    return "\n\n".join(parts)


def comparison_table(levels, of_shape):
    """One row a call, one column a level."""
    rows = [f"| {of_shape[0]['shape']} | at most | {' | '.join(level['isa'] for level in levels)} | error / bound |",
            "|---|---|" + "---|" * len(levels) + "---|"]
    for results in zip(*(comparison["results"] for comparison in of_shape)):
        goals = {f"{result['goal']['ratio']:.2f}" for result in results if "goal" in result}
        cells = [r["failure"] if "failure" in r else f"{r['ratio']:.3f} ({r['spread']:.1%})" for r in results]
        errors = [result["error_over_bound"] for result in results if "error_over_bound" in result]
        error = f"{max(errors):.3f}" if errors else ""
        rows.append(f"| {results[0]['feature']} | {' '.join(goals)} | {' | '.join(cells)} | {error} |")
    return "\n".join(rows)


def table(level):
    if "failure" in level:
        return f"**{level['isa']}**: {level['failure']}."
    peak = level["peak"]
    limit = level.get("peer_limit", "not limited")
    peer = "" if limit == "not limited" else f"; oneDNN {limit}"
    rows = [
        f"**{level['isa']}**, peak {peak['fma'] / 1e9:.0f} GFLOP/s, exp2 {peak['exp2'] / 1e9:.1f} G/s{peer}",
        "",
        "| shape | GFLOP/s | share of peak | spread | beside oneDNN | its path | error / bound |",
        "|---|---|---|---|---|---|---|",
    ]
    notes = []
    for result in level["results"]:
        if "failure" in result:
            rows.append(f"| {result['shape']} | {result['failure']} | | | | | |")
            continue
        fovea = result["fovea"]
        ratio = f"{result['ratio']:.2f} ×" if "ratio" in result else "-"
        path = short_path(result["peer"]["name"]) if "peer" in result else "-"
        speed = f"{fovea['flops_per_second'] / 1e9:.0f}"
        if fovea["seconds"] < 1e-5:
            speed = f"{fovea['seconds'] * 1e6:.2f} µs"
        rows.append(f"| {result['shape']} | {speed} | {fovea['share']:.1%} | {fovea['spread']:.1%} | {ratio} | {path} | "
                    f"{fovea['error_over_bound']:.3f} |")
        if "bandwidth" in result:
            notes.append(f"{result['shape']}: K and V at {result['bandwidth'] / 1e9:.1f} GB/s, "
                         f"{result['bandwidth_share']:.0%} of a plain read of them.")
    if "scaling" in level and "ratio" in level["scaling"]:
        scaling = level["scaling"]
        notes.append(f"Two threads on {scaling['shape']}: {scaling['ratio']:.2f} × one thread "
                     f"(the peak itself: {scaling['peak_ratio']:.2f} ×).")
    return "\n".join(rows + ([""] + notes if notes else []))


def decode_table(level):
    if "failure" in level:
        return f"**{level['isa']}**: {level['failure']}."
    rows = [f"**{level['isa']}**, peak {level['peak']['fma'] / 1e9:.0f} GFLOP/s", "",
            "| shape | time | share of the roofline | at least | a plain read | spread | error / bound |", "|---|---|---|---|---|---|---|"]
    for result in level["results"]:
        if "failure" in result:
            rows.append(f"| {result['shape']} | {result['failure']} | | | | | |")
            continue
        fovea, goal = result["fovea"], result.get("goal", {})
        seconds = fovea["seconds"]
        time = f"{seconds * 1e6:.2f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"
        share = result.get("roofline_share", fovea["share"])  # what is in cache has nothing to read
        wanted = f"{goal['seconds'] * 1e6:.2f} µs" if "seconds" in goal else f"{goal.get('roofline', goal.get('share', 0)):.2f}"
        read = f"{result['read_bandwidth'] / 1e9:.1f} GB/s" if "read_bandwidth" in result else ""
        rows.append(f"| {result['shape']} | {time} | {share:.2f} | {wanted if goal else ''} | {read} | {fovea['spread']:.1%} | "
                    f"{fovea['error_over_bound']:.3f} |")
    return "\n".join(rows)


def short_path(name):
    """Without the library and its version, which the head names."""
    return name.split(" ", 2)[2]


if __name__ == "__main__":
    main()
