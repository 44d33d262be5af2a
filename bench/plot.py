#!/usr/bin/env python3
"""Draws a report of fovea_bench: one panel per level, shapes along the horizontal axis, the measured peak as the top edge.

usage: bench/plot.py REPORT.json OUTPUT   (writes OUTPUT.svg and OUTPUT.png)
"""
import argparse
import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="what fovea_bench --json wrote")
    parser.add_argument("output", help="path without .svg or .png")
    arguments = parser.parse_args()
    with open(arguments.report) as file:
        report = json.load(file)

    levels = [level for level in report["levels"] if any(measured(r) for r in level.get("results", []))]
    if not levels:
        parser.error("the report has no measured shape")
    figure, panels = plt.subplots(len(levels), 1, figsize=(10, 1.2 + 3.2 * len(levels)), sharex=True, squeeze=False)
    for axes, level in zip(panels[:, 0], levels):
        draw(axes, level, report)
    names = [r["shape"] for r in levels[0]["results"]]
    axes = panels[-1, 0]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axes.set_xlabel("batch, query heads, key-value heads, queries, keys, dimension of keys[/values]")
    note = "; all repetitions kept, disturbed ones too" if report.get("disturbed_kept") else ""
    figure.suptitle(f"Fovea {report['fovea']}, f32, {report['threads']} thread(s) on {report['processor']}, {report['date']}{note}",
                    fontsize=10)
    figure.tight_layout()
    # No date and no random names inside: the same report gives the same file.
    plt.rcParams["svg.hashsalt"] = "fovea"
    figure.savefig(arguments.output + ".svg", metadata={"Date": None})
    figure.savefig(arguments.output + ".png", dpi=150)


def measured(result):
    return "share" in result.get("fovea", {})


def draw(axes, level, report):
    """Bars of share times peak, so that the top edge is the peak of every bar's own repetitions."""
    peak = level["peak"]["fma"] / 1e9
    for name, key, color, shift in (("Fovea", "fovea", "tab:blue", -0.2), (report.get("peer"), "peer", "tab:gray", 0.2)):
        bars = [(i, r[key]["share"]) for i, r in enumerate(level["results"]) if measured(r) and "share" in r.get(key, {})]
        if not bars:
            continue
        drawn = axes.bar([i + shift for i, _ in bars], [share * peak for _, share in bars], 0.38, label=name, color=color)
        axes.bar_label(drawn, [f"{share:.0%}" for _, share in bars], fontsize=7)
    axes.set_ylim(0, peak)
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{level['isa']}: top edge = measured multiply-add peak, {peak:.0f} GFLOP/s", fontsize=9)
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


if __name__ == "__main__":
    main()
