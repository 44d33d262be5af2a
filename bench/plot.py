#!/usr/bin/env python3
"""Draws reports of fovea_bench, each part that they have:

    OUTPUT                  shapes under the measured peak, and features as multiples of the plain call's time; a panel per level
    OUTPUT-roofline-LEVEL   shapes and caches under the measured peak and the measured speed of reading; a panel per type
    OUTPUT-decode           caches as shares of the speed of a plain read of the same bytes
    OUTPUT-scaling          several threads as multiples of the speed of one

usage: bench/plot.py OUTPUT REPORT.json... [--markdown PAGE]   (writes .svg and .png)

The page, which lies in the folder of OUTPUT, shows the plots between its marks, lines of their own: <!-- plot-roofline: begin --> and
<!-- plot-roofline: end -->, and likewise plot-decode and plot-scaling.
"""
import argparse
import itertools
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from report import comparisons, put, read, roof

TYPES = ("f32", "f16", "bf16", "i8", "q8_0", "q4_0")
CAPTIONS = {"roofline": "Calls by type, under the peak and the speed of reading", "decode": "Speed of caches by type and heads, as a share of a plain read",
            "scaling": "Speed over that of one thread, with the machine's as a line"}
GROUP_COLORS = {1: "tab:purple", 4: "tab:blue", 8: "tab:green", 16: "tab:orange"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", help="path without its ending")
    parser.add_argument("reports", nargs="+", metavar="REPORT.json", help="what fovea_bench --json wrote, on one machine")
    parser.add_argument("--markdown", metavar="PAGE", help="show the plots between the marks of that page")
    arguments = parser.parse_args()
    report = read(arguments.reports)
    figures = dict(make_figures(report))
    if not figures:
        parser.error("the reports have no figures")
    # No date and no random names inside: the same report gives the same file.
    plt.rcParams["svg.hashsalt"] = "fovea"
    for name, figure in figures.items():
        note = "; all repetitions kept, disturbed ones too" if report["disturbed_kept"] else ""
        threads = "" if name == "-scaling" else f", {report['threads']} thread(s)"
        figure.suptitle(f"Fovea {report['fovea']}{threads} on {report['processor']}, {report['date']}{note}", fontsize=10)
        figure.savefig(f"{arguments.output}{name}.svg", metadata={"Date": None})
        figure.savefig(f"{arguments.output}{name}.png", dpi=150)
    if arguments.markdown:
        put(arguments.markdown, links(figures, Path(arguments.output).name))


def links(names, output):
    """{mark: the lines that show its plots}"""
    shown = {}
    for (kind, text), name in itertools.product(CAPTIONS.items(), names):
        if name.startswith(f"-{kind}"):
            shown.setdefault(f"plot-{kind}", []).append(f"![{text}{name.removeprefix(f'-{kind}').replace('-', ': ')}]({output}{name}.svg)")
    return {mark: "\n".join(lines) for mark, lines in shown.items()}


def make_figures(report):
    """(what its name ends with, the figure)"""
    levels = [level for level in report["levels"] if "peak" in level]
    of_shapes = [level for level in levels if any(is_f32_shape(r) for r in level["results"])]
    of_features = [level for level in levels if any("ratio" in r for r in feature_results(level))]
    if of_shapes or of_features:
        yield "", shapes_and_features(of_shapes, of_features, report)
    bandwidths = read_bandwidths(levels)
    for level in levels:
        if any(measured(r) for r in level["results"]):
            yield f"-roofline-{level['isa']}", roofline(level, bandwidths)
    of_caches = [level for level in levels if any("bandwidth_share" in r for r in level["results"])]
    if of_caches:
        yield "-decode", caches(of_caches)
    of_threads = [level for level in levels if any("ratio" in r for r in level["scaling"])]
    if of_threads:
        yield "-scaling", scaling(of_threads)


def measured(result):
    return "share" in result.get("fovea", {})


def is_f32_shape(result):
    return measured(result) and result["type"] == "f32" and not result["decode"]


def feature_results(level):
    return next(iter(comparisons(level, "features")), {}).get("results", [])


def panels(rows, columns=1, width=10.0, height=3.2):
    return plt.subplots(rows, columns, figsize=(width, 1.2 + height * rows), squeeze=False, layout="constrained")


def shapes_and_features(of_shapes, of_features, report):
    figure, axes = panels(len(of_shapes) + len(of_features))
    shape_axes, feature_axes = axes[: len(of_shapes), 0], axes[len(of_shapes) :, 0]
    for panel, level in zip(shape_axes, of_shapes):
        draw_shapes(panel, level, [r for r in level["results"] if r["type"] == "f32" and not r["decode"]], report)
    for panel, level in zip(feature_axes, of_features):
        shape = comparisons(level, "features")[0]["shape"]
        draw_ratios(panel, feature_results(level), lambda r: r.get("goal", {}).get("ratio"), "at most")
        panel.set_ylabel("time / plain call")
        panel.set_title(f"{level['isa']}: features on {shape}", fontsize=9)
    if of_shapes:
        label(shape_axes, [r["shape"] for r in of_shapes[0]["results"] if r["type"] == "f32" and not r["decode"]])
        shape_axes[-1].set_xlabel("batch, query heads, key-value heads, queries, keys, dimension of keys[/values]")
    if of_features:
        label(feature_axes, [r["feature"] for r in feature_results(of_features[0])])
    return figure


def label(axes, names):
    """Names under the last of these panels."""
    for panel in axes:
        panel.set_xticks(range(len(names)), [""] * len(names))
    axes[-1].set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)


def draw_shapes(axes, level, results, report):
    """Bars of share times peak, so that the top edge is the peak of every bar's own repetitions."""
    peak = level["peak"]["fma"] / 1e9
    for name, key, color, shift in (("Fovea", "fovea", "tab:blue", -0.2), (report.get("peer"), "peer", "tab:gray", 0.2)):
        bars = [(i, r[key]["share"]) for i, r in enumerate(results) if measured(r) and "share" in r.get(key, {})]
        if not bars:
            continue
        drawn = axes.bar([i + shift for i, _ in bars], [share * peak for _, share in bars], 0.38, label=name, color=color)
        axes.bar_label(drawn, [f"{share:.0%}" for _, share in bars], fontsize=7)
    axes.set_ylim(0, peak)
    axes.set_ylabel("GFLOP/s")
    axes.set_title(f"{level['isa']}, f32: top edge = measured multiply-add peak, {peak:.0f} GFLOP/s", fontsize=9)
    finish(axes)


def draw_ratios(axes, results, limit, limit_name):
    """Bars of the results' ratios, with a line where the limit of each is."""
    bars = [(i, r["ratio"]) for i, r in enumerate(results) if "ratio" in r]
    axes.bar([i for i, _ in bars], [ratio for _, ratio in bars], 0.6, color="tab:blue", label="Fovea")
    limits = [(i, limit(r)) for i, r in enumerate(results) if limit(r)]
    if limits:
        places, values = zip(*limits)
        axes.hlines(values, [i - 0.4 for i in places], [i + 0.4 for i in places], color="tab:red", label=limit_name)
    top = 1.3 * max(value for _, value in bars + limits)
    axes.set_ylim(0, top)
    for i, ratio in bars:
        if ratio > 0.2 * top:
            axes.annotate(f"{ratio:.2f}", (i, ratio / 2), ha="center", va="center", color="white", fontsize=8)
        else:  # above the bar, and its limit's line
            axes.annotate(f"{ratio:.2f}", (i, max(ratio, dict(limits).get(i, 0))), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    finish(axes)


def finish(axes):
    axes.legend(loc="upper right", ncols=2, fontsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def read_bandwidths(levels):
    """Of the largest cache, which lies in memory, and the fastest of all; none where no cache was read."""
    read_ones = [r for level in levels for r in level["results"] if "read_bandwidth" in r]
    if not read_ones:
        return {}
    largest = max(read_ones, key=lambda r: r["bytes"])
    return {"reading from memory": largest["read_bandwidth"], "reading from a cache": max(r["read_bandwidth"] for r in read_ones)}


def roofline(level, bandwidths):
    types = [type_ for type_ in TYPES if any(measured(r) and r["type"] == type_ for r in level["results"])]
    columns = min(3, len(types))
    rows = -(-len(types) // columns)
    figure, axes = panels(rows, columns, width=1 + 4.2 * columns, height=3.6)
    for panel, type_ in itertools.zip_longest(axes.flat, types):
        if type_ is None:
            panel.set_axis_off()
        else:
            draw_roofline(panel, level, type_, bandwidths)
    handles = {name: handle for panel in axes.flat for handle, name in zip(*panel.get_legend_handles_labels())}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=8)
    return figure


def draw_roofline(axes, level, type_, bandwidths):
    """Flops a byte of queries, keys, values and outputs against speed, as the share of the peak beside it times the peak."""
    peak, f32_peak = roof(level["peak"], type_) / 1e9, level["peak"]["fma"] / 1e9
    points = [(r["flops_per_byte"], r["fovea"]["share"] * f32_peak, kind(r)) for r in level["results"] if measured(r) and r["type"] == type_]
    intensities = [x for x, *_ in points] + [peak * 1e9 / bandwidth for bandwidth in bandwidths.values()]  # slopes end in sight
    left, right = 0.6 * min(intensities), 1.6 * max(intensities)
    for (name, bandwidth), style in zip(bandwidths.items(), ("-", "--")):
        axes.plot([left, peak * 1e9 / bandwidth], [left * bandwidth / 1e9, peak], color="black", linestyle=style, linewidth=1, label=name)
    if peak > f32_peak:
        axes.axhline(f32_peak, color="tab:gray", linewidth=1, linestyle=":", label="multiply-adds of f32 alone")
    for name, (marker, color) in KINDS.items():
        of_kind = [(x, y) for x, y, each in points if each == name]
        if of_kind:
            axes.plot(*zip(*of_kind), marker, color=color, markersize=5, markeredgecolor="white", markeredgewidth=0.5, label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_ylim(min(0.7 * min(y for _, y, _ in points), 0.1 * peak), peak)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("flops a byte", fontsize=8)
    axes.set_ylabel("GFLOP/s", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.set_title(f"{level['isa']}, {type_}: top edge = measured peak, {peak:.0f} GFLOP/s", fontsize=9)
    axes.grid(alpha=0.3)


def sizes(result):
    """batch, query heads, key-value heads, queries, keys"""
    return [int(size) for size in result["shape"].split(" ")[0].split(",")[:5]]


def kind(result):
    _, heads_q, heads_kv, queries, _ = sizes(result)
    if queries > 1:
        return "several queries, causal" if "causal" in result["shape"] else "several queries"
    return of_group(heads_q // heads_kv)


def of_group(group):
    return f"one query, {group} head{'s' * (group > 1)} a key-value head"


KINDS = {"several queries": ("o", "tab:red"), "several queries, causal": ("s", "tab:pink"),
         **{of_group(group): ("^", color) for group, color in GROUP_COLORS.items()}}


def caches(levels):
    """A row of panels a level, a panel for each batch and number of keys; bars by type, and of each by the heads that share keys."""
    of_caches = [{**level, "results": [r for r in level["results"] if "bandwidth_share" in r]} for level in levels]
    types = [type_ for type_ in TYPES if any(r["type"] == type_ for level in of_caches for r in level["results"])]
    sides = sorted({(sizes(r)[0], sizes(r)[4]) for level in of_caches for r in level["results"]})
    figure, axes = panels(len(levels), len(sides), width=1 + 4.4 * len(sides), height=2.8)
    for row, level in zip(axes, of_caches):
        for panel, (batch, keys) in zip(row, sides):
            results = [r for r in level["results"] if (sizes(r)[0], sizes(r)[4]) == (batch, keys)]
            draw_caches(panel, results, types)
            panel.set_title(f"{level['isa']}: {batch} × {keys} keys", fontsize=9)
    handles, names = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), fontsize=8)
    for panel in axes[:, 0]:
        panel.set_ylabel("share of a plain read", fontsize=8)
    return figure


def draw_caches(axes, results, types):
    width = 0.8 / len(GROUP_COLORS)
    most = 1.0
    for i, (group, color) in enumerate(GROUP_COLORS.items()):
        bars = [(types.index(r["type"]) + (i - (len(GROUP_COLORS) - 1) / 2) * width, r) for r in results if sizes(r)[1] // sizes(r)[2] == group]
        axes.bar([x for x, _ in bars], [r["bandwidth_share"] for _, r in bars], width, color=color, label=of_group(group))
        axes.hlines([r["roofline_share"] for _, r in bars], [x - width / 2 for x, _ in bars], [x + width / 2 for x, _ in bars], color="black",
                    linewidth=1, label="share of the roofline" if i + 1 == len(GROUP_COLORS) else None)
        most = max([most] + [r["roofline_share"] for _, r in bars])
    axes.set_ylim(0, most)
    axes.set_xlim(-0.6, len(types) - 0.4)
    axes.set_xticks(range(len(types)), types, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def scaling(levels):
    figure, axes = panels(len(levels))
    for panel, level in zip(axes[:, 0], levels):
        draw_ratios(panel, level["scaling"], lambda r: r.get("machine_ratio"), "the machine")
        panel.set_ylabel("speed / one thread's")
        panel.set_title(f"{level['isa']}: the machine = the multiply-adds of so many threads, or their plain read of the cache", fontsize=9)
    label(axes[:, 0], [f"{r['shape']} on {r['threads']}" for r in levels[0]["scaling"]])
    return figure


if __name__ == "__main__":
    main()
