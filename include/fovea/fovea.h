/* Fovea: scaled dot-product attention on CPUs, softmax(scale * Q K^T) V. SPDX-License-Identifier: Apache-2.0
 *
 * This header is the whole C API and its manual. C99; includes only <stddef.h> and <stdint.h>.
 *
 * The shortest correct program:
 *
 *     fovea_context *context = NULL;
 *     fovea_params p;
 *     if (fovea_context_create(NULL, &context) != FOVEA_OK) return puts(fovea_last_error()), 1;
 *     fovea_params_init(&p, sizeof p, 1, 8, 8, 128, 128, 64, 64);  // batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v
 *     p.q.data = q; p.k.data = k; p.v.data = v; p.out.data = out;  // dense float [batch, head, seq, dim]
 *     if (fovea_forward(context, &p, NULL, 0) != FOVEA_OK) puts(fovea_last_error());
 *     fovea_context_destroy(context);
 *
 * Conventions that hold for every function:
 *   - Every argument is checked before the first byte is written: on an error all outputs are as they were.
 *   - Nothing here prints, aborts, throws or changes the floating-point environment that the caller sees.
 *   - All functions may be called from any thread at any time; a context is immutable and may be shared.
 *   - The meaning of a call, its promises and its error bound: docs/semantics.md.
 */
#ifndef FOVEA_FOVEA_H_
#define FOVEA_FOVEA_H_
#include <stddef.h>
#include <stdint.h>

/* FOVEA_SHARED is set by the build files of those who link the shared library. */
#ifndef FOVEA_API
#if defined(_WIN32) && defined(FOVEA_BUILDING) && defined(FOVEA_SHARED)
#define FOVEA_API __declspec(dllexport)
#elif defined(_WIN32) && defined(FOVEA_SHARED)
#define FOVEA_API __declspec(dllimport)
#elif defined(__GNUC__)
#define FOVEA_API __attribute__((visibility("default")))
#else
#define FOVEA_API
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define FOVEA_VERSION_MAJOR 0
#define FOVEA_VERSION_MINOR 2
#define FOVEA_VERSION_PATCH 0

/* Enumerations cross the ABI as int32_t. Values never change, new ones are appended, gaps separate groups. */

typedef int32_t fovea_status;
enum {
  FOVEA_OK = 0,
  FOVEA_ERR_NULL_POINTER = 1,     /* a pointer that must not be NULL is */
  FOVEA_ERR_STRUCT_SIZE = 2,      /* struct_size is not that of a version of the struct known here */
  FOVEA_ERR_INVALID_ARGUMENT = 3, /* a number outside its range: NaN scale, unknown enumerator, bad executor, ... */
  FOVEA_ERR_INVALID_SIZE = 4,     /* a negative size, or heads_q not a multiple of heads_kv, or sizes whose product overflows */
  FOVEA_ERR_INVALID_STRIDE = 5,   /* a negative stride, or one that makes elements of an output overlap */
  FOVEA_ERR_INVALID_DTYPE = 6,    /* not a dtype, or not one this tensor may have */
  FOVEA_ERR_OVERLAP = 7,          /* an output or the workspace overlaps something else of the call */
  FOVEA_ERR_WORKSPACE = 8,        /* the workspace given is too small */
  FOVEA_ERR_OUT_OF_MEMORY = 9,    /* the library's own allocation failed (never in the hot call) */
  FOVEA_ERR_UNSUPPORTED = 20,     /* well formed, but this version does not do it yet; the text names the field */
  FOVEA_ERR_ISA_UNAVAILABLE = 30  /* the level asked for is not compiled in, or this CPU or OS does not allow it */
};

typedef int32_t fovea_dtype;
enum {
  FOVEA_F32 = 1,   /* IEEE binary32 */
  FOVEA_F16 = 2,   /* IEEE binary16 */
  FOVEA_BF16 = 3,  /* the upper half of a binary32 */
  FOVEA_BOOL = 10, /* one byte, 0 or not 0 */
  FOVEA_I8 = 20,   /* signed byte, times its row's k_scale or v_scale */
  FOVEA_Q8_0 = 21, /* ggml's blocks of 32, 34 bytes: a binary16 scale, 32 signed bytes; an element is the scale times its byte */
  FOVEA_Q4_0 =
      22 /* ggml's blocks of 32, 18 bytes: a binary16 scale, 16 bytes; element i is the scale times (low nibble of byte i, less
                      8), element i + 16 likewise of its high nibble */
};

/* Levels of instruction sets. A level means all of its features, present in the CPU and enabled by the OS. */
typedef int32_t fovea_isa;
enum {
  FOVEA_ISA_AUTO = 0,
  FOVEA_ISA_SCALAR = 1,       /* portable C++ for the baseline of the target: x86-64 or armv8-a */
  FOVEA_ISA_AVX2 = 10,        /* AVX2, FMA, F16C */
  FOVEA_ISA_AVX512 = 11,      /* AVX-512 F, BW, DQ, VL, CD */
  FOVEA_ISA_AVX512_BF16 = 12, /* and AVX512-BF16 */
  FOVEA_ISA_AVX512_FP16 = 13, /* and AVX512-FP16 */
  FOVEA_ISA_AMX = 14,         /* and AMX tiles, with the permission of the OS */
  FOVEA_ISA_NEON = 40,        /* Advanced SIMD */
  FOVEA_ISA_NEON_BF16 = 41,   /* and BF16 */
  FOVEA_ISA_SVE = 42,         /* Scalable Vector Extension of 128 to 2048 bits, the same in all threads */
  FOVEA_ISA_SVE_BF16 = 43     /* and BF16, with vectors of 256 bits */
};

/* The position p of query i, which causal, windows and ALiBi compare with the positions of keys; q_len and kv_len are the lengths
 * of the query's own batch entry. */
enum {
  FOVEA_ALIGN_NONE = 0,
  FOVEA_ALIGN_TOP_LEFT = 1,    /* p = i: the first query stands at the first key */
  FOVEA_ALIGN_BOTTOM_RIGHT = 2 /* p = i + kv_len - q_len: the last query stands at the last key */
};

enum {
  FOVEA_SCORE_NONE = 0,
  FOVEA_SCORE_MODIFY = 1, /* the function changes finished scores */
  FOVEA_SCORE_REPLACE = 2 /* the function computes scores from rows of q and k */
};
#define FOVEA_SCORE_TILE_MAX 256 /* most rows and most columns of a score tile */

/* Most threads, or workers of an executor, of a context: the most CPUs that Linux can be built for on x86-64. */
#define FOVEA_MAX_THREADS 8192

/* fovea_options.flags. FOVEA_NO_AMX and FOVEA_FAST_MATH16 are reserved: accepted, and without any effect in this version, which
 * neither uses AMX nor computes in 16 bits, with them or without. Bits that are none of these are refused. */
#define FOVEA_NO_AMX 1u      /* reserved: do not ask the OS for AMX tiles */
#define FOVEA_IGNORE_ENV 2u  /* do not read FOVEA_ISA and FOVEA_TUNING from the environment */
#define FOVEA_FAST_MATH16 4u /* reserved: permission for 16-bit arithmetic */

/* A view of memory that the caller owns. Axes are [batch, head, seq, dim]. Strides count elements (not bytes), are >= 0, and
 * may be anything on any axis, the innermost included; 0 repeats an input along an axis. The stride of an axis of size 1 is
 * ignored. Only element alignment is needed. FOVEA_Q8_0 and FOVEA_Q4_0: strides count blocks, which lie side by side in a row, so
 * that stride[3] is 1 where there are several; the dims are a multiple of 32 and the alignment is 2. */
typedef struct fovea_tensor {
  void *data; /* NULL: absent, where the tensor is optional */
  int64_t stride[4];
  fovea_dtype dtype;
  int32_t reserved; /* 0 */
} fovea_tensor;

/* A tile of scores of one head: what a score function reads and writes. Entry (i, j) is score[i * row_stride + j * col_stride],
 * of query row0 + i and key col0 + j of a batch entry; in packed batches, of a segment and counted from its beginning. */
typedef struct fovea_score_tile {
  float *score;
  int64_t row_stride, col_stride, rows, cols; /* rows are queries, cols are keys; each in 1..FOVEA_SCORE_TILE_MAX */
  int64_t batch, head, row0, col0;            /* head is a query head */
  const float *q, *k; /* FOVEA_SCORE_REPLACE: unscaled rows of Q, ldq floats apart, and of K, ldk apart, dim_k each; else NULL */
  int64_t ldq, ldk, dim_k;
} fovea_score_tile;

/* The caller's part of the score, in natural units:
 *   FOVEA_SCORE_MODIFY   finds finished scores (scale, softcap, ALiBi and an additive mask are in them) and changes any of them;
 *   FOVEA_SCORE_REPLACE  finds anything and writes every score, in place of scale * (q . k). Scale is not applied; softcap, ALiBi
 *                        and an additive mask are, afterwards.
 * A score of -infinity excludes its key from the row; a NaN or +infinity makes the row NaN. Entries of keys that are excluded
 * anyway (causal, window, lengths, mask) hold anything, their rows of k too, and stay excluded whatever is written there; tiles
 * of nothing else may be left out. The function writes only entries of its tile and does not throw. Worker threads call it,
 * several at the same time, in any order, with tiles cut in any way, more than once for one entry: the score of an entry must
 * depend on nothing but its query, its key and user. It runs in round-to-nearest with subnormals flushed to 0 and no traps. */
typedef void (*fovea_score_fn)(void *user, const fovea_score_tile *tile);

/* One attention call. fovea_params_init() fills it; set the data pointers and what differs from the defaults. Only out, weights and lse are written.
 *
 * The score of the query at position p and key j, each step optional but the first:
 *   scale * (q . k), softcap * tanh(score / softcap), - alibi_slopes[head] * |p - j|, + mask, the score function.
 * A key that causal, a window, the lengths or the mask exclude is not in the row's set: nothing that its k and v hold ever
 * shows. */
typedef struct fovea_params {
  uint32_t struct_size; /* sizeof(fovea_params) of the caller */
  uint32_t flags;       /* 0 */
  int64_t batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v;
  /* q, k, v and out are FOVEA_F32, FOVEA_F16 or FOVEA_BF16, in any mix, k and v also FOVEA_I8, FOVEA_Q8_0 or FOVEA_Q4_0. Arithmetic is
   * float32; results are rounded to nearest even. */
  fovea_tensor q;   /* [batch, heads_q,  seq_q,  dim_k] */
  fovea_tensor k;   /* [batch, heads_kv, seq_kv, dim_k]; query head h uses key-value head h * heads_kv / heads_q */
  fovea_tensor v;   /* [batch, heads_kv, seq_kv, dim_v] */
  fovea_tensor out; /* [batch, heads_q,  seq_q,  dim_v]; no element may overlap another or anything else of the call */

  /* Optional output [batch, heads_q, seq_q, seq_kv] f32: the softmax matrix; excluded keys 0. A row sums to 1, to less with a
   * sink, to 0 if it is empty. Not with packed batches nor with pages. */
  fovea_tensor weights;

  /* Optional output [batch, heads_q, seq_q]: natural log of the sum of exp(score), the sink's included. An empty row has its
   * sink's value, or -infinity. */
  float *lse;
  int64_t lse_stride[3];

  float scale;   /* any finite value; fovea_params_init() sets 1/sqrt(dim_k), or 1 where dim_k is 0 */
  float softcap; /* 0: off; else positive and finite: scores are squeezed into (-softcap, softcap) before any bias */

  int32_t causal; /* 0 or 1: query at position p sees keys 0..p, as with a window_right of 0, whatever window_right is */
  int32_t align;  /* FOVEA_ALIGN_*: what p is; must name a corner where causal, a window or alibi_slopes is on */
  int64_t window_left, window_right; /* query at position p sees keys p - window_left .. p + window_right; -1: no bound */

  /* Optional [batch, heads_q, seq_q, seq_kv]; stride 0 repeats it along an axis. fovea_params_init() sets dense strides and no dtype.
   *   FOVEA_BOOL                         a byte: not 0 = attend, 0 excludes the key;
   *   FOVEA_F32, FOVEA_F16, FOVEA_BF16   added to the score: -infinity excludes the key, finite values never do, a NaN or
   *                                      +infinity at a key that nothing else excludes makes the row NaN.
   * Where a batch entry has fewer queries or keys, the rest is not read. In packed batches the first axis is the segment, and
   * queries and keys are counted from its beginning. */
  fovea_tensor mask;

  /* Optional [heads_q], finite. fovea_alibi_slopes() makes the usual ones. */
  const float *alibi_slopes;

  /* Optional [heads_q], in units of finished scores: exp(sink) is added once to the sum of exp(score); -infinity: none for this
   * head. */
  const float *sinks;

  /* Optional [batch], in 0..seq_q and 0..seq_kv: how many queries and keys each entry has. At or past its queries, q is not read
   * and out, weights and lse are not written; at or past its keys, k and v are not read and weights are 0. */
  const int32_t *seqlens_q, *seqlens_kv;

  /* Optional, in place of these: packed batches. batch + 1 offsets, never falling, the first at least 0, the last at most seq_q
   * or seq_kv. Entry b, a segment, has the tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1 of an axis of seq_q or seq_kv tokens
   * that all entries share: stride[0] of q, out and lse, or of k and v, is not used. Either side may be packed alone. Tokens
   * outside of all segments are neither read nor written. */
  const int32_t *cu_seqlens_q, *cu_seqlens_kv;

  fovea_score_fn score; /* optional, with score_mode */
  void *score_user;     /* handed to score */
  int32_t score_mode;   /* FOVEA_SCORE_MODIFY or FOVEA_SCORE_REPLACE; FOVEA_SCORE_NONE without a function */

  /* Optional, page_size > 0: keys lie in pages of page_size slots, and k and v are [page, heads_kv, slot, dim] with num_pages pages, in
   * one allocation or two. Key j of entry b is slot j % page_size of page block_table[b * block_table_stride + j / page_size], the
   * table being [batch, block_table_stride]. Entries may share pages. What causal, windows and lengths leave to no query of its
   * batch entry is not read, and where they leave nothing of a page its place in the table may hold anything. seq_kv is the most
   * keys that an entry can have, and how many each has if seqlens_kv does not say. Not with cu_seqlens_kv, nor with weights. */
  int32_t page_size;
  const int32_t *block_table;
  int64_t block_table_stride, num_pages;

  /* Where k or v is FOVEA_I8, and only there: FOVEA_F32, [batch or page, heads_kv, token or slot, 1], one factor for all dims of a row.
   * Strides are as those of k and v; 0 repeats. */
  fovea_tensor k_scale, v_scale;
} fovea_params;

/* Runs task(arg, i, worker) once for each i in [0, n) and returns when all have returned. Tasks may run at the same time on
 * different threads; worker < num_workers, and no two tasks that run at the same time get the same worker. */
typedef void (*fovea_task_fn)(void *arg, int64_t i, int32_t worker);
typedef struct fovea_executor {
  uint32_t struct_size; /* sizeof(fovea_executor) of the caller */
  int32_t num_workers;  /* 1..FOVEA_MAX_THREADS */
  void *user;
  void (*parallel_for)(void *user, fovea_task_fn task, void *arg, int64_t n);
} fovea_executor;

typedef struct fovea_context fovea_context; /* immutable once created; may be shared by threads */

typedef struct fovea_options {
  uint32_t struct_size; /* sizeof(fovea_options) of the caller */
  uint32_t flags;       /* FOVEA_NO_AMX, FOVEA_IGNORE_ENV, FOVEA_FAST_MATH16 */
  fovea_isa isa;        /* a level, or FOVEA_ISA_AUTO for the best; an unavailable level is an error, never a fallback */
  int32_t num_threads;  /* 0 = min(the OpenMP default, CPU affinity, CPU quota); 1 = never enters OpenMP; FOVEA_MAX_THREADS */
  const fovea_executor *executor; /* copied; NULL = OpenMP if it was built in, else serial */
  const char *tuning;             /* copied; a file that `fovea tune` wrote; NULL = what FOVEA_TUNING names, "" = none */
} fovea_options;

/* "major.minor.patch". */
FOVEA_API const char *fovea_version(void);

/* A constant phrase for a status; "unknown status" for other numbers. */
FOVEA_API const char *fovea_status_string(fovea_status status);

/* The text of this thread's latest failure, naming the argument; "" before the first. Valid until the thread's next failure. */
FOVEA_API const char *fovea_last_error(void);

/* Fills p for dense [batch, head, seq, dim] tensors of these sizes, dtype FOVEA_F32, scale 1/sqrt(dim_k), every option off, every pointer
 * NULL. struct_size is sizeof(fovea_params). Sizes of 0 are valid; dims are at most 2^24. */
FOVEA_API fovea_status fovea_params_init(fovea_params *p, size_t struct_size, int64_t batch, int64_t heads_q, int64_t heads_kv,
                                         int64_t seq_q, int64_t seq_kv, int64_t dim_k, int64_t dim_v);

/* Writes the usual ALiBi slopes of so many heads: 2^(-8 (h + 1) / heads) where heads is a power of two; else those of the next
 * lower power of two, then every other one of the next higher's. */
FOVEA_API fovea_status fovea_alibi_slopes(int64_t heads, float *slopes);

/* Fills o with the defaults. struct_size is sizeof(fovea_options). */
FOVEA_API fovea_status fovea_options_init(fovea_options *o, size_t struct_size);

/* Creates a context; o may be NULL for the defaults. Unless FOVEA_IGNORE_ENV is set or o names a level, the environment
 * variable FOVEA_ISA (a name of fovea_isa_name()) chooses the level. *out is written only on success.
 *
 * Unless FOVEA_IGNORE_ENV is set or o names a file, the environment variable FOVEA_TUNING may name one: a table of parameters that differ
 * in speed alone, measured on this machine (docs/tuning.md). No bit of a result depends on it. The file is read here, once, and belongs to
 * this context: calls, their workspace and contexts that are there already know nothing of what becomes of it. A file that is not to be
 * had, or that has any fault, is an error that names the line and the parameter. */
FOVEA_API fovea_status fovea_context_create(const fovea_options *o, fovea_context **out);

/* Frees a context that no call is using; NULL is allowed. */
FOVEA_API void fovea_context_destroy(fovea_context *c);

/* The bytes of workspace that fovea_forward() needs for p. It depends on sizes, strides and which options are there: enough for
 * any lengths, offsets, masks and block tables. Nothing is read through a data pointer. Any alignment of the workspace will do. At most 8 MiB a
 * thread for dims up to 256; more with a mask, 2 bits for each 64 queries x 256 keys of its own, where the bits of 64 queries (in
 * packed batches, also those of each entry's last) are rounded up to a byte; with lengths of the queries or offsets, some bytes a
 * batch entry. */
FOVEA_API fovea_status fovea_workspace_size(const fovea_context *c, const fovea_params *p, size_t *bytes);

/* Computes p->out, and p->lse and p->weights where given. workspace holds at least fovea_workspace_size() bytes, used by no
 * other call meanwhile; with it the call allocates nothing and takes no lock. workspace NULL: the call allocates its own.
 * Same call, same bits; a row's bits depend on neither threads, executor, batch nor other heads. */
FOVEA_API fovea_status fovea_forward(const fovea_context *c, const fovea_params *p, void *workspace, size_t bytes);

/* Combines out and lse of count calls for the same rows over disjoint sets of keys, the parts, into out and lse of one call over
 * all of these keys: keys sharded over processes, a prefix that batch entries share. Of each part and of the result only batch,
 * heads_q, seq_q, dim_v, out, lse, seqlens_q and cu_seqlens_q are read, the part's own call may be given as it is; each needs an
 * lse.
 *   - Sinks belong to exactly one part.
 *   - Sizes of a part are those of the result, and it has at least the result's rows. In packed batches out is [heads_q, token,
 *     dim_v]: batch and segments may differ then, so that one entry of all tokens is a part of many.
 *   - out is of any floating-point type and any strides, in each part. The result's out may be a part's, at the same address with
 *     the same strides and width of elements, and so may its lse; else they overlap nothing. result->weights is NULL.
 *   - A row of a part without keys (lse -infinity) does not count, whatever its out is. A row that one part alone has keys for is
 *     copied bit for bit (other types: rounded), without keys in any part out is 0 and lse -infinity. A NaN or +infinity in some
 *     lse makes the row NaN.
 * Arithmetic is double; neither a workspace nor memory is needed. Errors name the part and its field: "parts[2].seq_q: ...". */
FOVEA_API fovea_status fovea_merge(const fovea_context *c, const fovea_params *const *parts, int32_t count,
                                   const fovea_params *result);

/* Writes new tokens into a key-value cache, in the cache's own types. cache describes it as fovea_forward() reads it; of it only
 * batch, heads_kv, dim_k, dim_v, seq_kv (how many tokens each batch entry has room for), k, v, k_scale, v_scale, page_size,
 * block_table, block_table_stride and num_pages are read, and cu_seqlens_kv, which must be NULL. k_new and v_new are [batch,
 * heads_kv, token, dim] of any floating-point type and strides: the first count[b] tokens of entry b become its tokens start[b]
 * .. start[b] + count[b] - 1. start and count are [batch]; where count[b] is 0, start[b] is not read. Nothing else of the cache
 * is touched, gaps of strides neither.
 *   FOVEA_F32, FOVEA_F16, FOVEA_BF16   rounded to nearest even, bit for bit where the type is the same;
 *   FOVEA_I8   for each token and head scale = max |x| / 127, and x / scale rounded to nearest even, 0 where scale is;
 *   FOVEA_Q8_0, FOVEA_Q4_0   the bytes of ggml's reference quantisation: 34 or 18 a block of 32 dims.
 * The bytes are the same on every machine. A NaN or an infinity makes its scale NaN, so that all that shares the scale reads as
 * NaN. All or nothing: everything is checked first; an error names the argument, and the batch entry where it is one's. Batch
 * entries that would write one and the same slot of a page are the caller's error: the slot then holds bytes of either. Neither a
 * workspace nor memory is needed. Calls for different slots may run at the same time, also beside calls that read others. Where V
 * is a view of K (one latent vector for both), append K alone, with a dim_v of 0. */
FOVEA_API fovea_status fovea_kv_append(const fovea_context *c, const fovea_params *cache, const fovea_tensor *k_new,
                                       const fovea_tensor *v_new, const int32_t *start, const int32_t *count);

/* Levels known on this architecture, best here last; fills at most capacity entries and returns how many there are. usable_only: only
 * those that are compiled in and that this CPU and OS allow. */
FOVEA_API int32_t fovea_isa_list(fovea_isa *out, int32_t capacity, int32_t usable_only);

/* Lower-case name, as FOVEA_ISA takes it ("scalar", "avx2", "avx512", "neon", "sve", ...); "unknown" for other numbers. */
FOVEA_API const char *fovea_isa_name(fovea_isa isa);

/* Why a level cannot be used here, or "" where it can. The text is constant for the life of the process. */
FOVEA_API const char *fovea_isa_refusal(fovea_isa isa);

/* The level that c uses; its number of workers. */
FOVEA_API fovea_isa fovea_context_isa(const fovea_context *c);
FOVEA_API int32_t fovea_context_threads(const fovea_context *c);

/* The file whose table of parameters c uses, "" where it uses none. Valid until c is destroyed. */
FOVEA_API const char *fovea_context_tuning(const fovea_context *c);

/* Describes as JSON how c would run p: features, types, level, kernel, parameters, tasks, workspace, and why not other levels; or the
 * error. Works like snprintf: writes at most capacity bytes, NUL included, and returns the length that the whole text has. */
FOVEA_API size_t fovea_explain(const fovea_context *c, const fovea_params *p, char *json, size_t capacity);

#ifdef __cplusplus
}
#endif
#endif /* FOVEA_FOVEA_H_ */
