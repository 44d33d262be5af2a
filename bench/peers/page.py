#!/usr/bin/env python3
"""Writes reports of `python -m peers --json` into a Markdown page, between its marks, and draws them.

usage: PYTHONPATH=bench python -m peers.page docs/performance.md docs/peers REPORT.json...

The plots are docs/peers-ratios and docs/peers-lengths, .svg and .png. The marks are lines of their own: <!-- peers-calls: begin --> and
<!-- peers-calls: end -->, and likewise peers-inputs and peers-lengths. What the reports do not have is left as it is.
"""
import argparse
import collections
import json
import math
from pathlib import Path

from report import put

from . import NAMES
from .calls import LONGEST_OF_GOAL, TYPES
from .measure import length_differences

TITLES = {"fovea": "Fovea", "torch": "PyTorch", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "ggml": "ggml", "onednn": "oneDNN",
          "naive": "NumPy"}
PEERS = [name for name in NAMES if name != "fovea"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, help="Markdown file with the marks")
    parser.add_argument("plots", help="path of the plots without their endings")
    parser.add_argument("reports", nargs="+", metavar="REPORT.json", help="of runs on one machine")
    arguments = parser.parse_args()
    report = merged([json.loads(Path(path).read_text()) for path in arguments.reports])
    if report["disturbed_kept"]:
        parser.error("a report was made with --keep-disturbed: its figures are not for a page")
    publish(report, arguments.page, arguments.plots)


def publish(report, page, plots):
    sections = {"calls": calls_section, "inputs": inputs_section, "lengths": lengths_section}
    put(page, {f"peers-{name}": make(report) for name, make in sections.items() if report[name]})
    draw(report, plots)


def merged(reports):
    """One of several runs on one machine; the parts in their order."""
    whole = {**reports[0], "disturbed_kept": any(report["disturbed_kept"] for report in reports), "versions": {}, "calls": [], "inputs": [],
             "lengths": []}
    for report in reports:
        whole["versions"].update(report["versions"])
        for part in ("calls", "inputs", "lengths"):
            whole[part] += report[part]
    shapes = list(dict.fromkeys(result["shape"] for result in whole["calls"]))
    whole["calls"].sort(key=lambda result: (shapes.index(result["shape"]), TYPES.index(result["type"]), result["threads"]))
    return whole


def head(report):
    return f"{', '.join(report['versions'][name] for name in NAMES if name in report['versions'])}, on {report['processor']}, {report['date']}."


def of_time(seconds):
    return f"{seconds * 1e6:.1f} µs" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def calls_section(report):
    parts = [head(report)]
    for threads in sorted({result["threads"] for result in report["calls"]}):
        results = [result for result in report["calls"] if result["threads"] == threads]
        rows = [f"| {threads} thread{'s' * (threads > 1)} | type | Fovea | spread | {' | '.join(TITLES[name] for name in PEERS)} | the best | goal |",
                "|---|---|---|---|" + "---|" * len(PEERS) + "---|---|"]
        rows += [calls_row(result) for result in results]
        parts.append("\n".join(rows))
    parts.append("Of each library, over all of these calls:\n\n" + accuracy_table(report["calls"]))
    if scaling := scaling_table(report["calls"]):
        parts.append("Time on one thread over time on two, f32:\n\n" + scaling)
    parts.append("Which way of each library was the fastest, how often, and what has no figure:\n\n" + remarks(report["calls"]))
    return "\n\n".join(parts)


def calls_row(result):
    fovea = result["peers"]["fovea"]
    if "seconds" not in fovea:
        return f"| {result['shape']} | {result['type']} | {why_not(fovea)} |" + " |" * (len(PEERS) + 3)
    cells = [ratio_cell(result["peers"].get(name, {}), fovea, name == result["best"]) for name in PEERS]
    ratio = f"{result['ratio']:.2f}" if result["best"] else ""
    missed = result["goal"] and result["best"] and result["ratio"] < result["goal"]
    goal = f"{result['goal']:.1f}{' missed' if missed else ''}" if result["goal"] else ""
    return (f"| {result['shape']} | {result['type']} | {of_time(fovea['seconds'])} | {fovea['spread']:.0%} | {' | '.join(cells)} | {ratio} | "
            f"{goal} |")


def ratio_cell(peer, fovea, best):
    if "seconds" in peer:
        ratio = f"{peer['seconds'] / fovea['seconds']:.2f}"
        return f"**{ratio}**" if best else ratio
    return "wrong" if is_wrong(peer) else "failed" if "failure" in peer else ""


def is_wrong(peer):
    return not peer.get("way") and any("wrong" in way for way in peer.get("ways", {}).values())


def why_not(peer):
    """Why a library has no figure; of several ways the last one's reason."""
    if is_wrong(peer):
        return "wrong"
    reasons = [way["unsupported"] for way in peer.get("ways", {}).values() if "unsupported" in way]
    return peer.get("unsupported") or peer.get("failure") or (reasons or ["no way"])[-1]


def accuracy_table(calls):
    """The largest error of a library's fastest ways, by type."""
    errors = collections.defaultdict(float)
    for result in calls:
        for name, peer in result["peers"].items():
            if "error" in peer:
                errors[name, result["type"]] = max(errors[name, result["type"]], peer["error"])
    types = list(dict.fromkeys(result["type"] for result in calls))
    rows = ["| largest error | " + " | ".join(types) + " |", "|---|" + "---|" * len(types)]
    for name in NAMES:
        cells = [f"{errors[name, type_]:.1e}" if (name, type_) in errors else "" for type_ in types]
        if any(cells):
            rows.append(f"| {TITLES[name]} | {' | '.join(cells)} |")
    return "\n".join(rows)


def scaling_table(calls):
    seconds = {(result["shape"], result["threads"], name): peer["seconds"] for result in calls if result["type"] == "f32"
               for name, peer in result["peers"].items() if "seconds" in peer}
    rows = []
    for shape in dict.fromkeys(result["shape"] for result in calls):
        cells = [f"{seconds[shape, 1, name] / seconds[shape, 2, name]:.2f}" if (shape, 1, name) in seconds and (shape, 2, name) in seconds
                 else "" for name in NAMES]
        if any(cells):
            rows.append(f"| {shape} | {' | '.join(cells)} |")
    return rows and "\n".join([f"| two threads | {' | '.join(TITLES[name] for name in NAMES)} |", "|---|" + "---|" * len(NAMES), *rows])


def remarks(calls):
    lines = []
    for name in PEERS:
        ways, refusals = collections.Counter(), collections.defaultdict(list)
        for result in calls:
            if "seconds" not in result["peers"]["fovea"] or name not in result["peers"]:
                continue  # its row says why, or it was not asked
            peer = result["peers"][name]
            if peer.get("way") and "seconds" in peer:
                ways[peer["way"]] += 1
            else:
                refusals[why_not(peer)].append(f"{result['shape']} {result['type']}")
        parts = [f"{way} ({count})" for way, count in ways.most_common()]
        parts += [f"{', '.join(dict.fromkeys(of))}: {reason}" if len(of) < 8 else f"{len(of)} calls: {reason}" for reason, of in refusals.items()]
        if parts:
            lines.append(f"* {TITLES[name]}: {'; '.join(parts)}.")
    return "\n".join(lines)


def inputs_section(report):
    rows = [f"| inputs | type | {' | '.join(TITLES[name] for name in NAMES)} |", "|---|---|" + "---|" * len(NAMES)]
    for result in report["inputs"]:
        cells = [error_cell(result["peers"].get(name, {})) for name in NAMES]
        rows.append(f"| {result['inputs']} | {result['type']} | {' | '.join(cells)} |")
    return f"{report['inputs'][0]['shape']}. {head(report)}\n\n" + "\n".join(rows)


def error_cell(peer):
    """Of a library's worst way."""
    ways = [way for way in peer.get("ways", {}).values() if "error" in way]
    if not ways:
        return "failed" if "failure" in peer else ""
    if any(way["error"] is None for way in ways):
        return "**not a number**"
    text = f"{max(way['error'] for way in ways):.1e}"
    return f"**{text}**" if any("wrong" in way for way in ways) else text


def lengths_section(report):
    differences = dict(length_differences(report["lengths"]))
    rows = [f"| queries and keys | Fovea | over its median per pair | grows by | {' | '.join(TITLES[name] for name in PEERS)} |",
            "|---|---|---|---|" + "---|" * len(PEERS)]
    for result in report["lengths"]:
        fovea, keys = result["peers"]["fovea"], result["keys"]
        if "seconds" not in fovea:
            rows.append(f"| {keys} | {why_not(fovea)} |" + " |" * (len(PEERS) + 2))
            continue
        cells = [ratio_cell(result["peers"].get(name, {}), fovea, False) for name in PEERS]
        rows.append(f"| {keys} | {of_time(fovea['seconds'])} | {differences[keys]:+.1%} | {result['bytes'] / 1e6:.2f} MB | {' | '.join(cells)} |")
    return f"One head, dims of 64, f32, one thread. {head(report)}\n\n" + "\n".join(rows)


def draw(report, path):
    import matplotlib  # the page alone needs none

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "fovea"  # no date and no random names inside: the same report gives the same file

    def save(figure, name):
        figure.savefig(f"{path}-{name}.svg", metadata={"Date": None})
        figure.savefig(f"{path}-{name}.png", dpi=150)
        plt.close(figure)

    if report["calls"]:
        save(draw_ratios(plt, report), "ratios")
    if report["lengths"]:
        save(draw_lengths(plt, report), "lengths")


def draw_ratios(plt, report):
    """Rows of shapes, columns of types, a panel a number of threads; red is slower than the best peer, blue faster."""
    threads = sorted({result["threads"] for result in report["calls"]})
    shapes, types = (list(dict.fromkeys(result[key] for result in report["calls"])) for key in ("shape", "type"))
    figure, axes = plt.subplots(1, len(threads), figsize=(2.6 + 4.2 * len(threads), 1.2 + 0.42 * len(shapes)), squeeze=False, sharey=True,
                                layout="constrained")
    for panel, count in zip(axes[0], threads):
        cells = [[math.nan] * len(types) for _ in shapes]
        for result in report["calls"]:
            if result["threads"] != count or not result["best"]:
                continue
            x, y = types.index(result["type"]), shapes.index(result["shape"])
            cells[y][x] = math.log2(result["ratio"])
            strong = abs(cells[y][x]) > 1.7  # where the cell is dark
            panel.text(x, y, f"{result['ratio']:.2f}\n{TITLES[result['best']]}", ha="center", va="center", fontsize=6.5,
                       color="white" if strong else "black")
        image = panel.imshow(cells, cmap="RdBu", vmin=-3, vmax=3, aspect="auto")
        panel.set_xticks(range(len(types)), types)
        panel.set_yticks(range(len(shapes)), shapes, fontsize=8)
        panel.set_title(f"{count} thread{'s' * (count > 1)}", fontsize=9)
    bar = figure.colorbar(image, ax=axes[0], ticks=range(-3, 4), shrink=0.7)
    bar.ax.set_yticklabels([f"{2.0**tick:g} ×" for tick in range(-3, 4)], fontsize=8)
    figure.suptitle(f"Time of the best other library over Fovea's, on {report['processor']}, {report['date']}", fontsize=10)
    return figure


def draw_lengths(plt, report):
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name in NAMES:
        points = [(result["keys"], result["peers"][name]["seconds"] / result["keys"] ** 2 * 1e12) for result in report["lengths"]
                  if "seconds" in result["peers"].get(name, {})]
        if points:
            axes.plot(*zip(*points), marker="o", markersize=4, linewidth=2.5 if name == "fovea" else 1.2, label=TITLES[name])
    axes.set_xscale("log", base=2)
    axes.set_ylim(0)
    axes.axvline(LONGEST_OF_GOAL, color="tab:gray", linewidth=0.8, linestyle=":")
    axes.set_xlabel("queries and keys of one head, dims of 64, f32, one thread")
    axes.set_ylabel("picoseconds for each pair")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
