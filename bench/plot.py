#!/usr/bin/env python3
"""Draws a report of fovea_bench: a panel per level with the shapes, its top edge the measured peak, and one with the features, each as
a multiple of the plain call's time.

usage: bench/plot.py REPORT.json OUTPUT   (writes OUTPUT.svg and OUTPUT.png)
"""
import argparse
import json

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from report import comparisons


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("report", help="what fovea_bench --json wrote")
    parser.add_argument("output", help="path without .svg or .png")
    arguments = parser.parse_args()
    with open(arguments.report) as file:
        report = json.load(file)

    of_shapes = [level for level in report["levels"] if any(measured(r) for r in level.get("results", []))]
    of_features = [level for level in report["levels"] if any("ratio" in r for r in feature_results(level))]
    panels = len(of_shapes) + len(of_features)
    if panels == 0:
        parser.error("the report has neither a measured shape nor a measured feature")
    figure, axes = plt.subplots(panels, 1, figsize=(10, 1.2 + 3.2 * panels), squeeze=False, layout="constrained")
    shape_axes, feature_axes = axes[: len(of_shapes), 0], axes[len(of_shapes) :, 0]
    for panel, level in zip(shape_axes, of_shapes):
        draw(panel, level, report)
    for panel, level in zip(feature_axes, of_features):
        draw_features(panel, level)
    if of_shapes:
        label(shape_axes, [r["shape"] for r in of_shapes[0]["results"]])
        shape_axes[-1].set_xlabel("batch, query heads, key-value heads, queries, keys, dimension of keys[/values]")
    if of_features:
        label(feature_axes, [r["feature"] for r in feature_results(of_features[0])])
    note = "; all repetitions kept, disturbed ones too" if report.get("disturbed_kept") else ""
    figure.suptitle(f"Fovea {report['fovea']}, f32, {report['threads']} thread(s) on {report['processor']}, {report['date']}{note}",
                    fontsize=10)
    # No date and no random names inside: the same report gives the same file.
    plt.rcParams["svg.hashsalt"] = "fovea"
    figure.savefig(arguments.output + ".svg", metadata={"Date": None})
    figure.savefig(arguments.output + ".png", dpi=150)


def features(level):
    return next(iter(comparisons(level, "features")), {})


def feature_results(level):
    return features(level).get("results", [])


def label(axes, names):
    """Names under the last of these panels."""
    for panel in axes:
        panel.set_xticks(range(len(names)), [""] * len(names))
    axes[-1].set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)


def draw_features(axes, level):
    """Bars of time over the plain call's, with a line where the goal is."""
    results = feature_results(level)
    bars = [(i, r["ratio"]) for i, r in enumerate(results) if "ratio" in r]
    drawn = axes.bar([i for i, _ in bars], [ratio for _, ratio in bars], 0.6, color="tab:blue", label="Fovea")
    axes.bar_label(drawn, [f"{ratio:.2f}" for _, ratio in bars], padding=4, fontsize=7)
    goals = [(i, r["goal"]["ratio"]) for i, r in enumerate(results) if "goal" in r]
    if goals:
        places, most = zip(*goals)
        axes.hlines(most, [i - 0.4 for i in places], [i + 0.4 for i in places], color="tab:red", label="at most")
    axes.set_ylim(0, 1.3 * max([ratio for _, ratio in bars] + [most for _, most in goals]))
    axes.set_ylabel("time / plain call")
    axes.set_title(f"{level['isa']}: features on {features(level)['shape']}", fontsize=9)
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


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
