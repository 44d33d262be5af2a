"""The calls that are measured, and how much faster than the best peer Fovea is meant to be."""
import dataclasses
import re

FLOATS = ("f32", "f16", "bf16")
BLOCKS = ("q8_0", "q4_0")  # of keys and values; queries and outputs are f32 then
TYPES = FLOATS + BLOCKS
BLOCK = 32  # dims of a block of q8_0 or q4_0

# batch, query heads, key-value heads, queries, keys, dim of keys[/values]
SHAPES = (
    "1,12,12,197,197,64",
    "8,12,12,512,512,64",
    "1,8,8,4096,4096,64",
    "1,32,8,2048,2048,128 causal",
    "1,8,4,1024,1024,256 causal",
    "1,32,32,512,512,80",
    "1,16,16,1024,1024,192/128 causal",
    "1,16,16,300,77,40",
    "2,8,8,64,64,64",
    "1,32,8,1,4096,128",
    "1,32,8,1,32768,128",
    "8,32,8,1,2048,128",
    "1,32,32,1,4096,128",
    "4,9,3,1,700,64",
    "1,128,1,1,8192,576/512",
    "1,1,1,1,10,512",
)
# Numbers that rounding, overflow or a division by zero shows on; what they are: tensors.py.
INPUTS = ("normal", "large scores", "keys with an offset", "equal values", "a row without keys")
INPUTS_SHAPE = "1,4,4,128,1024,64"
# One head over sequences of growing length, for Fovea; peers, some of which hold all scores, stop earlier.
LENGTHS = tuple(1024 << i for i in range(8))
LONGEST_OF_PEERS = 16384
LONGEST_OF_GOAL = 65536  # up to here, time over queries * keys is that of its median within
LENGTH_GOAL = 0.1
QUICK_SHAPES = ("1,12,12,197,197,64", "1,8,4,1024,1024,256 causal", "2,8,8,64,64,64", "1,32,8,1,4096,128", "4,9,3,1,700,64")

PREFILL_GOALS = {"f32": 1.2, "f16": 1.3, "bf16": 2.0}
GROUPED_DECODE_GOAL = 2.0
OTHER_GOAL = 1.0


@dataclasses.dataclass(frozen=True)
class Call:
    batch: int
    heads_q: int
    heads_kv: int
    seq_q: int
    seq_kv: int
    dim_k: int
    dim_v: int
    causal: bool
    type: str
    inputs: str = "normal"

    @classmethod
    def parse(cls, shape, type_, inputs="normal"):
        match = re.fullmatch(r"(\d+),(\d+),(\d+),(\d+),(\d+),(\d+)(?:/(\d+))?( causal)?", shape.strip())
        if not match:
            raise ValueError(f"'{shape}' is not batch,heads_q,heads_kv,seq_q,seq_kv,dim_k[/dim_v] [causal]")
        *sizes, dim_v, causal = match.groups()
        call = cls(*map(int, sizes), int(dim_v or sizes[-1]), bool(causal), type_, inputs)
        if min(call.batch, call.heads_kv, call.seq_q, call.seq_kv, call.dim_k, call.dim_v) == 0 or call.heads_q % call.heads_kv:
            raise ValueError(f"'{shape}': sizes start at 1, and heads_q is a multiple of heads_kv")
        if call.causal and call.seq_q != call.seq_kv:
            raise ValueError(f"'{shape}': causal calls have as many keys as queries, where all libraries mean the same by it")
        return call

    @property
    def shape(self):
        sizes = (self.batch, self.heads_q, self.heads_kv, self.seq_q, self.seq_kv, self.dim_k)
        value_dims = f"/{self.dim_v}" if self.dim_v != self.dim_k else ""
        return ",".join(map(str, sizes)) + value_dims + (" causal" if self.causal else "")

    def __str__(self):
        return f"{self.shape} {self.type}"

    @property
    def group(self):
        return self.heads_q // self.heads_kv

    @property
    def query_type(self):
        return "f32" if self.type in BLOCKS else self.type

    @property
    def scale(self):
        return self.dim_k**-0.5

    def exists(self):
        """Quantised caches are measured where caches are: behind one query. Their rows are whole blocks."""
        return self.type in FLOATS or (self.seq_q == 1 and self.dim_k % BLOCK == 0 and self.dim_v % BLOCK == 0)

    def goal(self, has_bf16_tiles):
        """has_bf16_tiles: the CPU multiplies tiles of bf16 (AMX), which peers use and Fovea does not."""
        if self.seq_q > 1:
            return None if self.type == "bf16" and has_bf16_tiles else PREFILL_GOALS[self.type]
        return GROUPED_DECODE_GOAL if self.group > 1 else OTHER_GOAL
