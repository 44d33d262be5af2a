"""Real models by Fovea and by PyTorch's own scaled_dot_product_attention(), in one process with the same threads.

Usage: models.py [--threads N] [--json FILE] [--markdown PAGE] [--quick]. Needs the packages of requirements-torch.txt and
requirements-models.txt. Both take turns, each first as often as the other; what is printed are medians. A clock around the attention functions
gives the share of attention. --markdown puts the table into a page, between the marks for so many threads.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import fovea.torch
import fovea.transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "bindings/python/tests"), str(ROOT / "bench")]
import models  # noqa: E402
from report import put  # noqa: E402

WAYS = "sdpa", "fovea"
DECODED = 200  # tokens

in_attention = 0.0


def clocked(function):
    def run(*arguments, **options):
        global in_attention
        begin = time.perf_counter()
        result = function(*arguments, **options)
        in_attention += time.perf_counter() - begin
        return result

    return run


def seconds(run):
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def compare(model, run, repetitions):
    """The median of the seconds of a run, and of those in attention, for each way."""
    global in_attention
    taken = {way: [] for way in WAYS}
    warm = repetitions > LONG
    for repetition in range(repetitions + warm):
        for way in WAYS[::1 if repetition % 2 else -1]:
            model.set_attn_implementation(f"clocked_{way}")
            in_attention = 0.0
            whole = seconds(run)
            if repetition >= warm:  # the first of short ones is for caches and threads
                taken[way].append((whole, in_attention))
    return {way: {"seconds": statistics.median(whole for whole, _ in runs), "attention": statistics.median(inside for _, inside in runs),
                  "all": runs} for way, runs in taken.items()}


LONG = 4  # repetitions of runs that take seconds


def workloads(quick):
    """name, model, what to run, how often."""
    model, tokenizer = models.smollm2()
    ids = torch.randint(0, model.config.vocab_size, (1, 4096), generator=torch.Generator().manual_seed(1))
    for length, repetitions in ((16, 60), (512, 7), (2048, 3), (4096, 2)):
        if not quick or length <= 512:
            yield f"SmolLM2 prefill {length}", model, lambda: model(ids[:, :length], logits_to_keep=1), repetitions
    prompt = tokenizer("The sea", return_tensors="pt")
    yield f"SmolLM2 decode {DECODED}", model, lambda: model.generate(**prompt, max_new_tokens=DECODED, min_new_tokens=DECODED,
                                                                      do_sample=False), 1 if quick else 3
    model, tokenizer = models.minilm()
    sentence = "A sentence encoder maps sentences and paragraphs to vectors that lie near each other where they mean the same. "
    for batch, repetitions in ((1, 300), (32, 9)):
        words = tokenizer([sentence * (1 + i % 4) for i in range(batch)], padding=True, return_tensors="pt")
        yield f"MiniLM batch {batch} × {words['input_ids'].shape[1]}", model, lambda: model(**words), repetitions


def layer_microseconds(functions):
    """Of the attention function of a layer of SmolLM2 for one query and two keys: one call after the other, and each after 20 MB of other
    memory, which is what the weights of a layer do to what the caches hold."""
    layer = torch.nn.Module()
    layer.num_key_value_groups, layer.is_causal = 3, True
    q, k = torch.randn(1, 1, 9, 64).transpose(1, 2), torch.randn(1, 3, 2, 64)
    weights, x = torch.randn(2500, 2048), torch.randn(2048)
    taken = {way: {"again": [], "between": []} for way in WAYS}
    for _ in range(20):
        for way, function in functions.items():
            for kind, between in (("again", lambda: None), ("between", lambda: weights @ x)):
                for _ in range(20):
                    between()
                    taken[way][kind].append(seconds(lambda: function(layer, q, k, k, None, dropout=0.0, scaling=0.125)))
    return {way: {kind: statistics.median(runs) * 1e6 for kind, runs in kinds.items()} for way, kinds in taken.items()}


def cells(name, row):
    pytorch, own = (row[way] for way in WAYS)
    return [name, f"{pytorch['seconds'] * 1e3:.1f}", f"{own['seconds'] * 1e3:.1f}", f"{pytorch['seconds'] / own['seconds']:.2f} ×",
            f"{pytorch['attention'] / pytorch['seconds']:.1%} → {own['attention'] / own['seconds']:.1%}",
            f"{pytorch['attention'] / own['attention']:.2f} ×"]


HEAD = ["run", "PyTorch, ms", "Fovea, ms", "faster", "share of attention", "attention alone"]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path, metavar="PAGE")
    parser.add_argument("--quick", action="store_true", help="no long prompts")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    fovea.transformers.register()
    masks = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS
    functions = {"sdpa": sdpa_attention_forward, "fovea": transformers.AttentionInterface()["fovea"]}
    for way in WAYS:
        transformers.AttentionInterface.register(f"clocked_{way}", clocked(functions[way]))
        transformers.AttentionMaskInterface.register(f"clocked_{way}", masks[way])
    rows = {}
    print("{:<28}{:>12}{:>12}{:>10}{:>22}{:>17}".format(*HEAD))
    with torch.inference_mode():
        layer = layer_microseconds(functions)
        for name, model, run, repetitions in workloads(options.quick):
            rows[name] = compare(model, run, repetitions)
            print("{:<28}{:>12}{:>12}{:>10}{:>22}{:>17}".format(*cells(name, rows[name])), flush=True)
    of_layer = (f"The attention function of a layer, of one query and two keys, takes {layer['sdpa']['again']:.1f} µs with PyTorch and "
                f"{layer['fovea']['again']:.1f} µs with Fovea;\nafter 20 MB of other memory, as in a model, {layer['sdpa']['between']:.0f} and "
                f"{layer['fovea']['between']:.0f} µs.")
    print(of_layer)
    if options.markdown:
        table = [HEAD, ["---"] * len(HEAD)] + [cells(name, row) for name, row in rows.items()]
        lines = [f"| {' | '.join(row)} |" for row in table]
        threads = f"{options.threads} thread" + "s" * (options.threads > 1)
        put(options.markdown, {f"models, {threads}": "\n".join(
            [f"float32, {threads}, {fovea.info()['isa']}, PyTorch {torch.__version__}, transformers {transformers.__version__}.", "", *lines, "",
             of_layer])})
    if options.json:
        versions = {"fovea": fovea.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
        report = {"versions": versions, "fovea": fovea.info(), "threads": options.threads, "rows": rows,
                  "layer": layer}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
