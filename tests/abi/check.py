#!/usr/bin/env python3
"""Checks of what the compiler and the linker made of the library. Each prints what is wrong and then fails.

usage: check.py CHECK [--tools PREFIX] [--header F] [--registry F] [--expected F] FILE...
"""
import argparse
import collections
import re
import subprocess
import sys
from pathlib import Path

# object: the registers that hold its vectors, floats in one, and the mnemonics of its fused multiply-adds
VECTORS = {
    "avx2": (r"%ymm\d+", 8, r"vfn?m(add|sub)\d+ps"),
    "avx512": (r"%zmm\d+", 16, r"vfn?m(add|sub)\d+ps"),
    "avx512_bf16": (r"%zmm\d+", 16, r"vfn?m(add|sub)\d+ps|vdpbf16ps"),
    "neon": (r"v\d+\.4s", 4, r"fml[as]"),
    "neon_bf16": (r"v\d+\.4s", 4, r"fml[as]|bfmmla"),
    **{f"sve{bits}": (r"z\d+\.s", bits // 32, r"fml[as]|fmad|fmsb") for bits in (128, 256, 512, 1024, 2048)},
    "sve256_bf16": (r"z\d+\.s", 8, r"fml[as]|fmad|fmsb|bfmmla"),
}

Instruction = collections.namedtuple("Instruction", "address code mnemonic operands relocation")
problems = []


def run(tool, *arguments):
    return subprocess.run([options.tools + tool, *map(str, arguments)], check=True, capture_output=True, text=True).stdout


def level_of(path):
    return Path(path).name.split(".")[0]


def symbols(path):
    """(name, type) of every symbol; types as in nm."""
    return [tuple(line.split()[:2]) for line in run("nm", "-P", path).splitlines() if len(line.split()) >= 2]


def functions(path):
    """name: instructions, of every function of an object."""
    result, name = {}, None
    for line in run("objdump", "-d", "-r", "-w", path).splitlines():
        if header := re.match(r"[0-9a-f]+ <(.*)>:$", line):
            name = header[1]
            while name in result:  # of another section
                name += "'"
            result[name] = []
        elif parts := re.match(r" *([0-9a-f]+):\t([0-9a-f ]+)\t(.*?)(?:\t[0-9a-f]+: R_\w+\t(\S+))?$", line):
            address, code, text, relocation = parts.groups()
            text = re.sub(r" *(#|//).*", "", text.replace("\t", " "))
            text = re.sub(r"^((bnd|notrack|rep|repz|data16|cs) )+", "", text)
            mnemonic, _, operands = text.strip().partition(" ")
            result[name].append(Instruction(int(address, 16), code.split(), mnemonic, operands.strip(), relocation))
    return result


def own_namespace(name, level):
    """Whether a mangled name lies in namespaces of this level's alone."""
    scope = re.match(r"_ZN[VKrRO]*(.*)", name)
    if not scope:
        return False
    parts, rest = [], scope[1]
    while length := re.match(r"(\d+)", rest):
        end = len(length[1]) + int(length[1])
        parts.append(rest[len(length[1]):end])
        rest = rest[end:]
    return parts[:1] == [f"fovea_xsimd_{level}"] or parts[:2] == ["fovea", level]


def isa_namespaces(files):
    """The linker keeps one copy of a weak function for everybody: none may come from an object of an instruction set."""
    for path in files:
        level = level_of(path)
        for name, kind in symbols(path):
            registered = re.fullmatch(rf"_ZN5fovea\d+kernel_{level}_\w+E", name) and kind in "RD"
            if kind in "TDRBWVuCG" and not registered and not own_namespace(name, level):
                problems.append(f"{path}: {name} ({kind}) can be seen by other objects and is not in a namespace of {level}")
            if re.search(r"_Z\w*St\d|_ZN?K?S[tabsiod]|_ZNK?9__gnu_cxx", name):
                problems.append(f"{path}: {name} comes from the C++ library")


def isa_initialisers(files):
    """Code that runs before main() runs on every CPU."""
    for path in files:
        for section in re.findall(r"\.(?:init_array|ctors|preinit_array|init)\b\S*", run("readelf", "-SW", path)):
            problems.append(f"{path}: section {section}")


def baseline_encoding(files):
    """VEX and EVEX instructions start with C4, C5 or 62, behind segment and address-size prefixes alone."""
    prefixes = {"26", "2e", "36", "3e", "64", "65", "67"}
    for path in files:
        count = 0
        for name, body in functions(path).items():
            for i in body:
                count += 1
                opcode = next((byte for byte in i.code if byte not in prefixes), "")
                if opcode in ("c4", "c5", "62"):
                    problems.append(f"{path}: {name}: {i.mnemonic} {i.operands}")
        if not count:
            problems.append(f"{path}: no code found")


def jump_target(i):
    """Address of a direct jump inside its section, or None."""
    if i.relocation or not re.match(r"j\w+|b(\.\w+)?$|cbn?z|tbn?z", i.mnemonic):
        return None
    target = re.search(r"(?:^|, ?)([0-9a-f]+) <", i.operands)
    return int(target[1], 16) if target else None


def largest_fused_loop(body, register, fma):
    """Fused multiply-adds of the innermost loop that has most of them, and neither multiplies, adds nor spills."""
    index = {i.address: n for n, i in enumerate(body)}
    loops = [(index[t], n) for n, i in enumerate(body) if (t := jump_target(i)) in index and index[t] <= n]
    best = 0
    for begin, end in loops:
        if any((b, e) != (begin, end) and begin <= b and e <= end for b, e in loops):
            continue  # not an innermost loop
        vector = [i for i in body[begin:end + 1] if re.search(register, i.operands)]
        apart = sum(bool(re.fullmatch(r"v?f?(mul|add)(ps)?", i.mnemonic)) for i in vector)
        spilled = sum(bool(re.search(r"\(%rsp|\(%rbp|\[sp", i.operands)) for i in body[begin:end + 1])
        if not apart and not spilled:
            best = max(best, sum(bool(re.fullmatch(fma, i.mnemonic)) for i in vector))
    return best


def tile_fma(files):
    """The loops of the tile of scores and of the largest tile of outputs do nothing but fused multiply-adds on full vectors, one per
    accumulator and step. Where a compiler or xsimd falls back to multiply and add, or keeps an accumulator in memory, no such loop
    exists."""
    tiles = re.findall(r"^FOVEA_KERNEL\((\w+), *(\w+), *(\w+), *(\d+), *(\d+)\)", Path(options.registry).read_text(), re.M)
    for path in files:
        level = level_of(path)
        if level not in VECTORS:
            continue
        register, lanes, fma = VECTORS[level]
        bodies = functions(path)
        values = {tuple(map(int, found.groups())): {name: body} for name, body in bodies.items()
                  if (found := re.search(r"ValueTileI.*SimdELi(\d+)ELi(\d+)ELb0EE3run", name))}
        widest = max(values, key=lambda size: size[::-1], default=None)
        scores = max(int(rows) * int(keys) // lanes for l, _, _, rows, keys in tiles if l == level)
        wanted = [("scores", scores, {name: body for name, body in bodies.items() if not re.search("ValueTile", name)})]
        if widest:
            wanted.append(("outputs", widest[0] * widest[1], values[widest]))
        for tile, accumulators, candidates in wanted:
            best = max(largest_fused_loop(body, register, fma) for body in candidates.values())
            print(f"{level}: {best} FMAs in the largest loop of nothing else; the tile of {tile} has {accumulators} accumulators")
            if best < accumulators:
                problems.append(f"{path}: no loop of at least {accumulators} fused multiply-adds for the tile of {tile}")


def entry_points(path, bodies):
    """Functions that code outside the object can reach: by name, or because data of the object hold their address."""
    by_name = {name for name, kind in symbols(path) if kind in "TW"}
    data = re.sub(r"RELOCATION RECORDS FOR \[\.(eh_frame|text|debug)[^]]*\]:\n(.+\n)*", "", run("objdump", "-r", path))
    addresses = {int(offset or "0", 16) for offset in re.findall(r"R_X86_64_64 +\.text(?:\+0x([0-9a-f]+))?\s", data)}
    by_address = {name for name, body in bodies.items() if body and body[0].address in addresses}
    return (by_name | by_address | set(re.findall(r"R_X86_64_64 +(_Z\w+)", data))) & set(bodies)


def dirty_returns(body, dirty_functions):
    """Returns, and jumps into other functions, that a path reaches with dirty upper halves of ymm0-15 or zmm0-15."""
    index = {i.address: n for n, i in enumerate(body)}
    ends = {n for n, i in enumerate(body) if re.match(r"jmp|ret|ud2|hlt", i.mnemonic)}
    direct = {index[t] for i in body if (t := jump_target(i)) in index}
    # Where a jump through a table may arrive: behind the end of a path, where no direct jump arrives.
    table = [n + 1 for n in ends if n + 1 < len(body) and n + 1 not in direct]
    state, found, work = {}, [], [(0, False)]  # state: instruction -> may the upper halves be dirty before it?
    while work:
        n, dirty = work.pop()
        if n >= len(body) or state.get(n) is True or state.get(n) == dirty:
            continue
        state[n] = dirty
        i = body[n]
        callee = re.search(r"<([^+>]+)>", i.operands)
        enters_dirty_function = bool(callee) and callee[1] in dirty_functions
        if i.mnemonic in ("vzeroupper", "vzeroall"):
            dirty = False
        elif i.mnemonic.startswith("call"):
            dirty = enters_dirty_function
        elif re.search(r"%[yz]mm(\d|1[0-5])\b", i.operands):
            dirty = True
        target = jump_target(i)
        if i.mnemonic.startswith("ret") or (i.mnemonic == "jmp" and "*" not in i.operands and target not in index):
            if dirty or enters_dirty_function:
                found.append(i)
        elif target in index:
            work.append((index[target], dirty))
        elif i.mnemonic == "jmp":
            work.extend((t, dirty) for t in table)
        if n not in ends:
            work.append((n + 1, dirty))
    return found


def clean_returns(files):
    """Upper halves of vector registers left dirty slow the caller's SSE code down: every path from their use to a return to code
    outside the object passes vzeroupper."""
    for path in files:
        if level_of(path) not in ("avx2", "avx512", "avx512_bf16"):
            continue
        bodies = functions(path)
        entries = entry_points(path, bodies)
        if not entries:
            problems.append(f"{path}: no function can be reached from outside")
        dirty, before = {}, None
        while before != set(dirty):
            before = set(dirty)
            dirty = {name: found for name, body in bodies.items() if (found := dirty_returns(body, before))}
        print(f"{level_of(path)}: {len(entries)} entry points, {len(dirty)} inner functions return dirty")
        for name in entries & set(dirty):
            problems.extend(f"{path}: {name}: {i.mnemonic} at {i.address:x} with dirty upper halves" for i in dirty[name])


def exported_symbols(files):
    """The header, the list, the archive and the shared library name the same functions."""
    expected = Path(options.expected).read_text().split()
    header = re.findall(r"^FOVEA_API [^;(]*?(\w+)\(", Path(options.header).read_text(), re.M)
    lists = {options.header: header}
    for path in files:
        dynamic = ["-D"] if ".so" in Path(path).suffixes else []
        lines = run("nm", "-P", "-g", "--defined-only", *dynamic, path).splitlines()
        lists[path] = [line.split("@")[0].split()[0] for line in lines if len(line.split()) > 1 and " A " not in line]
    for source, names in lists.items():
        if odd := set(names) ^ set(expected):
            problems.append(f"{source} and {options.expected} differ in {', '.join(sorted(odd))}")
        if len(names) != len(set(names)):
            problems.append(f"{source} names a symbol twice")


def shared_library(files):
    """No C++ runtime, no unknown code at load time, never unloaded."""
    for path in files:
        dynamic = run("readelf", "-dW", path)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", dynamic))
        if extra := needed - {"libc", "libm", "libgomp", "libomp", "libpthread", "ld-linux-aarch64", "ld-linux-x86-64"}:
            problems.append(f"{path} needs {', '.join(sorted(extra))}")
        soname = ".".join(Path(path).name.split(".")[:4])  # libfovea.so.MAJOR.MINOR of the file libfovea.so.MAJOR.MINOR.PATCH
        for pattern in (rf"\(SONAME\).*\[{re.escape(soname)}\]", r"NODELETE"):
            if not re.search(pattern, dynamic):
                problems.append(f"{path}: no {pattern} in its dynamic section")
        if "TEXTREL" in dynamic:
            problems.append(f"{path}: relocations in code")
        # What runs at load time: the C start-up's own, and the one constructor that is meant to be there.
        names = {int(fields[2], 16): fields[0] for line in run("nm", "-P", path).splitlines() if len(fields := line.split()) > 2}
        section = re.search(r"\.init_array +INIT_ARRAY +([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+)", run("readelf", "-SW", path))
        begin, size = int(section[1], 16), int(section[2], 16)
        relocations = re.findall(r"^([0-9a-f]+) +\S+ R_\w+_RELATIVE +([0-9a-f]+)", run("readelf", "-rW", path), re.M)
        initialisers = [names[int(target, 16)] for place, target in relocations if begin <= int(place, 16) < begin + size]
        if len(initialisers) != size // 8:
            problems.append(f"{path}: {size // 8} initialisers, of which {len(initialisers)} are known")
        problems.extend(f"{path}: runs {name} when it is loaded" for name in initialisers
                        if name != "frame_dummy" and "watch_forks" not in name)
        if any("fast_math" in name for name, _ in symbols(path)):
            problems.append(f"{path}: linked with the start-up object of -ffast-math")


def struct_layout(files):
    """The program given prints the layout; it is the one written down."""
    actual = subprocess.run(files, check=True, capture_output=True, text=True).stdout.splitlines()
    expected = Path(options.expected).read_text().splitlines()
    problems.extend(f"- {line}" for line in expected if line not in actual)
    problems.extend(f"+ {line}" for line in actual if line not in expected)
    if not problems and actual != expected:
        problems.append("fields in another order")


def usable_levels(files):
    """The program given prints the usable levels; they are those that the kernel reports the features of."""
    cpuinfo = re.search(r"^(?:flags|Features)\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)[1].split()
    avx512 = "avx512f avx512bw avx512dq avx512vl avx512cd avx2 fma f16c"
    features = {"avx2": "avx2 fma f16c", "avx512": avx512, "avx512_bf16": f"{avx512} avx512_bf16",
                "neon": "asimd", "neon_bf16": "asimd bf16", "sve": "asimd sve"}
    sve_bytes = Path("/proc/sys/abi/sve_default_vector_length")
    if sve_bytes.exists() and int(sve_bytes.read_text()) == 32:  # the one length with a kernel
        features["sve_bf16"] = "asimd sve svebf16"
    expected = {"scalar"} | {level for level, words in features.items() if set(words.split()) <= set(cpuinfo)}
    actual = set(subprocess.run(files, check=True, capture_output=True, text=True).stdout.split())
    print(f"usable: {' '.join(sorted(actual))}")
    if actual != expected:
        problems.append(f"/proc/cpuinfo says: {' '.join(sorted(expected))}")


checks = {f.__name__: f for f in (isa_namespaces, isa_initialisers, baseline_encoding, tile_fma, clean_returns, exported_symbols,
                                  shared_library, struct_layout, usable_levels)}
parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("check", choices=checks)
parser.add_argument("files", nargs="+")
parser.add_argument("--tools", default="", help="prefix of nm, objdump and readelf")
parser.add_argument("--header")
parser.add_argument("--registry")
parser.add_argument("--expected")
options = parser.parse_args()
checks[options.check](options.files)
print("\n".join(problems))
sys.exit(1 if problems else 0)
