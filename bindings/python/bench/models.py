"""Real models by Fovea and by PyTorch's own scaled_dot_product_attention(), in one process with the same threads.

Usage: models.py [--threads N] [--json FILE] [--quick]. Needs the packages of requirements-torch.txt and requirements-models.txt. Both take turns;
what is printed is the least of the repetitions, which other programs disturb least. The share of attention is the time inside of the attention
functions, from a run of its own with a clock around each.
"""
import argparse
import json
import pathlib
import sys
import time

import torch
import transformers
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import fovea.torch
import fovea.transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
import models  # noqa: E402

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
    """The least seconds and the share of attention, for each way."""
    taken = {way: [] for way in WAYS}
    for repetition in range(repetitions + 1):
        for way in WAYS:
            model.set_attn_implementation(way)
            once = seconds(run)
            if repetition:  # the first is for caches and threads
                taken[way].append(once)
    shares = {}
    for way in WAYS:
        global in_attention
        model.set_attn_implementation(f"clocked_{way}")
        in_attention = 0.0
        whole = seconds(run)
        shares[way] = in_attention / whole
    return {way: {"seconds": min(taken[way]), "all": taken[way], "attention": shares[way]} for way in WAYS}


def workloads(quick):
    """name, model, what to run, how often."""
    model, tokenizer = models.smollm2()
    ids = torch.randint(0, model.config.vocab_size, (1, 4096), generator=torch.Generator().manual_seed(1))
    for length, repetitions in ((16, 15), (512, 5), (2048, 3), (4096, 3)):
        if not quick or length <= 512:
            yield f"SmolLM2 prefill {length}", model, lambda: model(ids[:, :length], logits_to_keep=1), repetitions
    prompt = tokenizer("The sea", return_tensors="pt")
    yield f"SmolLM2 decode {DECODED}", model, lambda: model.generate(**prompt, max_new_tokens=DECODED, min_new_tokens=DECODED,
                                                                      do_sample=False), 1 if quick else 3
    model, tokenizer = models.minilm()
    sentence = "A sentence encoder maps sentences and paragraphs to vectors that lie near each other where they mean the same. "
    for batch, repetitions in ((1, 25), (32, 5)):
        words = tokenizer([sentence * (1 + i % 4) for i in range(batch)], padding=True, return_tensors="pt")
        yield f"MiniLM batch {batch} × {words['input_ids'].shape[1]}", model, lambda: model(**words), repetitions


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=pathlib.Path)
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
    print(f"{'milliseconds, float32, threads: ' + str(options.threads):<34}{'PyTorch':>10}{'Fovea':>10}{'faster':>9}   share of attention")
    with torch.inference_mode():
        for name, model, run, repetitions in workloads(options.quick):
            row = rows[name] = compare(model, run, repetitions)
            pytorch, own = (row[way] for way in WAYS)
            print(f"{name:<34}{pytorch['seconds'] * 1e3:10.1f}{own['seconds'] * 1e3:10.1f}{pytorch['seconds'] / own['seconds']:8.2f}×"
                  f"   {pytorch['attention']:.1%} → {own['attention']:.1%}", flush=True)
    if options.json:
        versions = {"fovea": fovea.__version__, "torch": torch.__version__, "transformers": transformers.__version__}
        report = {"versions": versions, "fovea": fovea.info(), "threads": options.threads, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
