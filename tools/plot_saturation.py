#!/usr/bin/env python3
"""Draws what `fovea saturation --out DIR` measured: DIR/saturation.{svg,png} and DIR/score_variance.{svg,png}.

Usage: plot_saturation.py DIR/saturation.json
"""
import json
import pathlib
import sys

try:
    import matplotlib
except ImportError:
    sys.exit("plot_saturation.py: needs matplotlib: pip install -r tools/requirements.txt")
matplotlib.use("Agg")
matplotlib.rcParams["svg.hashsalt"] = "fovea"  # the same figure has the same bytes
import matplotlib.pyplot as plt

BLUE, ORANGE, GREY = "#2166ac", "#d6604d", "#888888"


def save(figure, folder, name):
    for suffix, metadata in (("svg", {"Date": None}), ("png", {})):
        figure.savefig(folder / f"{name}.{suffix}", dpi=150, bbox_inches="tight", metadata=metadata)


def draw_softmax(report, folder):
    """Left: softmax of the scores as they are. Right: of the scores divided by the square root of d_k."""
    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True, layout="constrained")
    keys = range(1, len(report["scores"]) + 1)
    for panel, which, title, color in (
        (panels[0], "softmax_unscaled", r"softmax$(\mathbf{k}_j^\top\mathbf{q})$: saturated", ORANGE),
        (panels[1], "softmax_scaled", r"softmax$(\mathbf{k}_j^\top\mathbf{q}\,/\sqrt{d_k})$: spread", BLUE),
    ):
        bars = panel.bar(keys, report[which], color=color)
        panel.bar_label(bars, [f"{p:.2f}" if p >= 0.005 else "" for p in report[which]], fontsize=8, padding=2)
        panel.set_title(title)
        panel.set_xlabel("key $j$")
        panel.set_xticks(keys)
        panel.set_ylim(0, 1.1)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("weight")
    figure.suptitle(f"One query, {len(keys)} keys, $d_k = {report['dim_k']}$, standard normal components")
    save(figure, folder, "saturation")


def draw_variance(report, folder):
    """Variance of the scores against d_k, with the 99.9 % bounds, beside what theory says."""
    figure, panel = plt.subplots(figsize=(5.5, 4), layout="constrained")
    dims = [row["dim_k"] for row in report["statistics"]]
    for which, theory, label, color in (
        ("score", dims, r"$\mathbf{k}^\top\mathbf{q}$", ORANGE),
        ("scaled_score", [1] * len(dims), r"$\mathbf{k}^\top\mathbf{q}\,/\sqrt{d_k}$", BLUE),
    ):
        variance = [row[which]["variance"] for row in report["statistics"]]
        estimate = [v["estimate"] for v in variance]
        half = [v["bounds_99.9"][1] - v["estimate"] for v in variance]
        panel.plot(dims, theory, color=GREY, linewidth=1, linestyle="--", label="theory: $d_k$ and 1" if which == "score" else None)
        panel.errorbar(dims, estimate, half, color=color, marker="o", linestyle="none", capsize=4, label="variance of " + label)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log", base=2)
    panel.set_xticks(dims, [str(dim) for dim in dims])
    panel.set_yticks([1, 4, 16, 64, 256, 1024], ["1", "4", "16", "64", "256", "1024"])
    panel.set_xlabel("$d_k$")
    panel.set_title(f"Variance of scores, {report['draws']} draws each, 99.9 % bounds", fontsize=10)
    panel.legend(frameon=False)
    panel.spines[["top", "right"]].set_visible(False)
    save(figure, folder, "score_variance")


def main():
    if len(sys.argv) != 2 or sys.argv[1] in ("-h", "--help"):
        sys.exit(__doc__)
    file = pathlib.Path(sys.argv[1])
    report = json.loads(file.read_text())
    draw_softmax(report, file.parent)
    draw_variance(report, file.parent)


if __name__ == "__main__":
    main()
