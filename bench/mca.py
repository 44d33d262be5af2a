#!/usr/bin/env python3
"""Predicts with llvm-mca how near the inner loops of the AArch64 kernels come to the peak of cores that are not at hand.

usage: bench/mca.py [BUILD] [--goals] [--json FILE] [--markdown PAGE]

BUILD is a build for AArch64; tools/dev test makes build/cross-aarch64. The loops are taken from its objects: of the tile of
scores and of the tile of outputs the loop without a jump inside that has the most multiply-adds. The share is what the core's
multiply-add pipes alone would need over what the loop is predicted to take. Loads are taken to depend on earlier stores: an
accumulator that was spilled is a long chain then.
"""
import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

from report import put

GOAL = 0.85
# object, bits of its vectors, cores that it would run on
KERNELS = [("neon", 128, ["neoverse-v1", "neoverse-v2", "apple-m1"]),
           ("neon_bf16", 128, ["neoverse-v1", "neoverse-v2"]),
           ("sve256", 256, ["neoverse-v1"]),
           ("sve256_bf16", 256, ["neoverse-v1"]),
           ("sve128", 128, ["neoverse-v2"]),
           ("sve512", 512, ["a64fx"])]
# The functions of the tiles as they are demangled; the numbers are the size of the tile, and the largest one counts.
TILES = {"scores": r"exponentiate_tile<.*Simd, (\d+), .*TileKind\)0, (\d+)>",
         "outputs": r"ValueTile<.*Simd, (\d+), (\d+), false>::run\("}
ITERATIONS = 1000  # the first pass, which waits for its loads, is then a thousandth


def functions(disassembly):
    """name: [(address, instruction)] of what objdump -d --no-show-raw-insn printed."""
    result, body = {}, []
    for line in disassembly.splitlines():
        if header := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            body = result.setdefault(header[1], [])
        elif instruction := re.match(r" *([0-9a-f]+):\t(.*)$", line):
            text = re.sub(r" *//.*", "", instruction[2].replace("\t", " "))
            body.append((int(instruction[1], 16), text))
    return result


def is_multiply_add(instruction):
    return re.match(r"fml[as] |fmad |bfdot |bfmmla ", instruction) is not None


def multiply_adds(loop):
    return sum(map(is_multiply_add, loop))


def hottest_loop(body):
    """The loop without a jump inside that has the most multiply-adds; its last instruction jumps to `loop`."""
    index = {address: n for n, (address, _) in enumerate(body)}
    loops, block = [], 0  # where the last jump was passed
    for n, (_, text) in enumerate(body):
        if not re.match(r"(b|b\.\w+|cbn?z|tbn?z|blr?|br|ret)\b", text):
            continue
        target = re.search(r"\b([0-9a-f]+) <", text)
        begin = index.get(int(target[1], 16), -1) if target else -1
        if block <= begin <= n:
            loops.append([re.sub(r"\b[0-9a-f]+ <.*>", "loop", line) for _, line in body[begin:n + 1]])
        block = n + 1
    return max(loops, key=multiply_adds, default=[])


def largest_tile(bodies, pattern):
    """The body of the function of the largest tile: most vectors wide, then most rows."""
    sizes = {tuple(int(size) for size in reversed(found.groups())): body for name, body in bodies.items()
             if (found := re.search(pattern, name))}
    return sizes[max(sizes)] if sizes else []


def predict(mca, core, loop):
    """Cycles of one pass of the loop, and how many its busiest pipe needs."""
    command = [mca, "-mtriple=aarch64", f"-mcpu={core}", f"-iterations={ITERATIONS}", "-noalias=false", "-json"]
    done = subprocess.run(command, input="loop:\n" + "\n".join(loop) + "\n", capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    summary = json.loads(done.stdout)["CodeRegions"][0]["SummaryView"]
    return summary["TotalCycles"] / ITERATIONS, summary["BlockRThroughput"]


def measure(mca, core, loop):
    cycles, _ = predict(mca, core, loop)
    _, pipes = predict(mca, core, [instruction for instruction in loop if is_multiply_add(instruction)])
    return {"multiply_adds": multiply_adds(loop), "instructions": len(loop), "cycles": cycles, "pipe_cycles": pipes,
            "share": pipes / cycles}


def kernel_loops(arguments):
    for name, bits, cores in KERNELS:
        path = arguments.build / f"lib/CMakeFiles/fovea_isa.dir/kernels/isa/{name}.cpp.o"
        if not path.exists():
            sys.exit(f"{path} is not there: is {arguments.build} a build for AArch64?")
        command = [arguments.objdump, "-d", "-C", "-w", "--no-show-raw-insn", path]
        bodies = functions(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for tile, pattern in TILES.items():
            loop = hottest_loop(largest_tile(bodies, pattern))
            if not multiply_adds(loop):
                sys.exit(f"{path}: no loop of multiply-adds was found for the tile of {tile}")
            for core in cores:
                yield {"kernel": name, "bits": bits, "core": core, "tile": tile, **measure(arguments.mca, core, loop)}


def bfdot_tile(sve):
    """Two dims a step of 8 keys x 3 vectors of queries, their dims packed in pairs: what BFMMLA has to beat."""
    loop = [f"ld1h {{z{v}.h}}, p0/z, [x1, #{v}, mul vl]" if sve else f"ldr q{v}, [x1, #{16 * v}]" for v in range(3)]
    for key in range(8):
        loop += [f"add x20, x{2 + key}, x10", "ld1rw {z3.s}, p0/z, [x20]"] if sve else [f"ldr s3, [x{2 + key}, x10]"]
        for v, sum_ in enumerate(range(8 + 3 * key, 11 + 3 * key)):
            loop.append(f"bfdot z{sum_}.s, z{v}.h, z3.h" if sve else f"bfdot v{sum_}.4s, v{v}.8h, v3.2h[0]")
    return loop + ["add x1, x1, #48", "add x10, x10, #4", "cmp x10, x11", "b.ne loop"]


def bf16_rates(arguments, loops):
    """Multiply-adds a cycle of the tile of scores in f32, with BFDOT, and with BFMMLA, which the kernels of bfloat16 are made of."""
    scores = {(x["kernel"], x["core"]): x for x in loops if x["tile"] == "scores"}
    for (kernel, core), bfmmla in scores.items():
        if not kernel.endswith("_bf16"):
            continue
        fmla = scores[kernel[:-len("_bf16")], core]
        bfdot = measure(arguments.mca, core, bfdot_tile("sve" in kernel))
        row = {"core": core, "kernel": kernel}
        for name, loop, products in (("fmla", fmla, 1), ("bfdot", bfdot, 2), ("bfmmla", bfmmla, 4)):  # products a lane and instruction
            row[name] = loop["multiply_adds"] * products * bfmmla["bits"] // 32 / loop["cycles"]
        yield row


def loop_table(loops):
    rows = ["| kernel | core | tile of | FMAs | instructions | cycles | FMA pipes alone | share |",
            "|---|---|---|---|---|---|---|---|"]
    rows += [f"| {x['kernel']} | {x['core']} | {x['tile']} | {x['multiply_adds']} | {x['instructions']} | {x['cycles']:.2f} | "
             f"{x['pipe_cycles']:.2f} | {x['share']:.0%} |" for x in loops]
    return "\n".join(rows)


def bf16_table(rows):
    lines = ["| core | kernel | FMLA | BFDOT | BFMMLA |", "|---|---|---|---|---|"]
    lines += [f"| {x['core']} | {x['kernel']} | {x['fmla']:.1f} | {x['bfdot']:.1f} ({x['bfdot'] / x['fmla']:.2f} ×) | "
              f"{x['bfmmla']:.1f} ({x['bfmmla'] / x['fmla']:.2f} ×) |" for x in rows]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.split("\n\n", 2)[2],
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", nargs="?", type=Path, default="build/cross-aarch64", help="a build for AArch64 (%(default)s)")
    parser.add_argument("--goals", action="store_true", help=f"exit with 1 if a share is below {GOAL}")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    parser.add_argument("--markdown", metavar="PAGE", help="put the tables between the marks of that page")
    parser.add_argument("--mca", default="llvm-mca-19",
                        help="older ones model the multiply-adds of neoverse-v1 wrongly (%(default)s)")
    parser.add_argument("--objdump", default="aarch64-linux-gnu-objdump", help="%(default)s")
    arguments = parser.parse_args()

    loops = list(kernel_loops(arguments))
    bf16 = list(bf16_rates(arguments, loops))
    version_text = subprocess.run([arguments.mca, "--version"], check=True, capture_output=True, text=True).stdout
    version = re.search(r"LLVM version (\S+)", version_text)[1]
    head = f"llvm-mca of LLVM {version}:"
    print(f"{head}\n\n{loop_table(loops)}\n\nMultiply-adds a cycle in a tile of scores:\n\n{bf16_table(bf16)}")
    if arguments.json:
        report = {"llvm": version, "goal": GOAL, "loops": loops, "bf16": bf16}
        Path(arguments.json).write_text(json.dumps(report, indent=1) + "\n")
    if arguments.markdown:
        put(arguments.markdown, {"predicted": f"{head}\n\n{loop_table(loops)}", "bf16": bf16_table(bf16)})
    missed = [f"{x['kernel']} on {x['core']}, tile of {x['tile']}: {x['share']:.2f}" for x in loops if x["share"] < GOAL]
    if arguments.goals:
        print("\n" + ("\n".join(f"below {GOAL}: {text}" for text in missed) or f"every share is at least {GOAL}"))
    return 1 if arguments.goals and missed else 0


if __name__ == "__main__":
    sys.exit(main())
