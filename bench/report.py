#!/usr/bin/env python3
"""Puts the figures of a report of fovea_bench as Markdown tables between the marks of the pages named.

usage: bench/report.py REPORT.json PAGE...

The marks are lines of their own: <!-- measured: begin --> and <!-- measured: end --> around the shapes in f32; "core16" in place of "measured"
around those in f16 and bf16, and "decode", "features", "types" and "scaling" likewise. What a page has no marks for, and what the report does
not have, is left as it is.
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
    report = read([arguments.report])
    if report["disturbed_kept"]:
        sys.exit("the report was made with --keep-disturbed or --quick: its figures are not for a page")
    sections = make_sections(report)
    for page in arguments.pages:
        content = Path(page).read_text()
        found = {name: text for name, text in sections.items() if f"<!-- {name}: begin -->" in content}
        if not found:
            sys.exit(f"{page}: has no marks for any of: {', '.join(sections) or 'nothing measured'}")
        put(page, found)


def read(paths):
    """One report of several: the results of a level together, the levels in the order in which they come first."""
    reports = [json.loads(Path(path).read_text()) for path in paths]
    levels = {}
    for level in (level for report in reports for level in report["levels"]):
        whole = levels.setdefault(level["isa"], {"isa": level["isa"], "results": [], "comparisons": [], "scaling": []})
        for name, value in level.items():
            if isinstance(value, list) and name in whole:
                whole[name] += value
            else:
                whole.setdefault(name, value)
    return {**reports[0], **{"peer": report["peer"] for report in reports if "peer" in report},
            "date": ", ".join(sorted({report["date"] for report in reports})),
            "disturbed_kept": any(report["disturbed_kept"] for report in reports), "levels": list(levels.values())}


def make_sections(report):
    sections = {}
    beside = f", beside {report['peer']}" if "peer" in report else ""
    for name, make, more, belongs in (("measured", shape_tables, f"{beside}, f32", lambda r: not r["decode"] and r["type"] == "f32"),
                                      ("core16", core16_table, "", lambda r: not r["decode"] and r["type"] != "f32"),
                                      ("decode", decode_tables, "", lambda r: r["decode"])):
        parts = [{**level, "results": [r for r in level["results"] if belongs(r)]} for level in report["levels"]]
        if any(part["results"] for part in parts):
            sections[name] = f"{head(report, more)}\n\n{make([part for part in parts if part['results'] or 'failure' in part])}"
    for name in ("features", "types"):
        if levels := [level for level in report["levels"] if comparisons(level, name)]:
            sections[name] = comparison_section(report, name, levels)
    if levels := [level for level in report["levels"] if level["scaling"]]:
        sections["scaling"] = f"Fovea {report['fovea']} on {report['processor']}, {report['date']}.\n\n{scaling_table(levels)}"
    return sections


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


def head(report, more=""):
    return f"Fovea {report['fovea']}{more}, {report['threads']} thread(s) on {report['processor']}, {report['date']}."


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


def shape_tables(levels):
    return "\n\n".join(map(shape_table, levels))


def shape_table(level):
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
    for scaling in level["scaling"][:1]:
        if "ratio" in scaling:
            rows += ["", f"{scaling['threads']} threads on {scaling['shape']}: {scaling['ratio']:.2f} × one thread "
                         f"(the peak itself: {scaling['machine_ratio']:.2f} ×)."]
    return "\n".join(rows)


def core16_table(levels):
    """GFLOP/s and share of the f32 peak; one row a shape, one column a level and type."""
    levels = [level for level in levels if "failure" not in level]
    columns = list(dict.fromkeys((level["isa"], r["type"]) for level in levels for r in level["results"]))
    cells = {(r["shape"].rsplit(" ", 1)[0], level["isa"], r["type"]): core16_cell(r) for level in levels for r in level["results"]}
    rows = [f"| shape | {' | '.join(f'{isa}, {type_}' for isa, type_ in columns)} |", "|---|" + "---|" * len(columns)]
    for shape in dict.fromkeys(shape for shape, *_ in cells):
        rows.append(f"| {shape} | {' | '.join(cells.get((shape, *column), '') for column in columns)} |")
    return "\n".join(rows)


def core16_cell(result):
    if "failure" in result:
        return result["failure"]
    return f"{result['fovea']['flops_per_second'] / 1e9:.0f} ({result['fovea']['share']:.0%})"


def scaling_table(levels):
    """One row a shape and number of threads, two columns a level."""
    names = " | ".join(f"{level['isa']} | the machine" for level in levels)
    rows = [f"| shape | threads | {names} |", "|---|---|" + "---|---|" * len(levels)]
    for results in zip(*(level["scaling"] for level in levels)):
        cells = [f"{r['failure']} |" if "failure" in r else f"{r['ratio']:.2f} | {r['machine_ratio']:.2f}" for r in results]
        rows.append(f"| {results[0]['shape']} | {results[0]['threads']} | {' | '.join(cells)} |")
    return "\n".join(rows)


def decode_tables(levels):
    return "\n\n".join(map(decode_table, levels))


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


def roof(peak, type_):
    """Flops a second at most: half of them are scores, in bf16 by an instruction of its own where there is one, and half have weights in f32."""
    return 2 / (1 / peak["bf16_dot"] + 1 / peak["fma"]) if type_ == "bf16" and "bf16_dot" in peak else peak["fma"]


def short_path(name):
    """Without the library and its version, which the head names."""
    return name.split(" ", 2)[2]


if __name__ == "__main__":
    main()
