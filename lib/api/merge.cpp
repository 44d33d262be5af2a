// fovea_merge(): results over disjoint sets of keys become the result over all of them.
#include <inttypes.h>
#include <math.h>

#include "api/check.h"
#include "api/context.h"
#include "api/elements.h"
#include "api/error.h"
#include "api/operands.h"
#include "core/float_bits.h"
#include "run/float_environment.h"

namespace fovea {
namespace {

// What is read of a part and written of the result. Packed batches are one entry, whose queries are all tokens.
struct Rows {
  Operand out, lse;
};

Rows rows_of(const fovea_params &p, bool is_output) {
  const int64_t batch = p.cu_seqlens_q && p.batch ? 1 : p.batch;
  const Tensor lse = {p.lse, {p.lse_stride[0], p.lse_stride[1], p.lse_stride[2], 0}, FOVEA_F32};
  return {tensor_operand("out", "out.stride", to_tensor(p.out), batch, p.heads_q, p.seq_q, p.dim_v, is_output),
          tensor_operand("lse", "lse_stride", lse, batch, p.heads_q, p.seq_q, 1, is_output)};
}

// The rows of an entry of rows_of() that exist.
struct Range {
  int64_t begin, end;
};

Range queries_of(const fovea_params &p, int64_t entry) {
  if (p.cu_seqlens_q) return {p.cu_seqlens_q[0], p.cu_seqlens_q[p.batch]};  // segments follow each other without a gap
  return {0, p.seqlens_q ? p.seqlens_q[entry] : p.seq_q};
}

fovea_status check_rows(const fovea_params &p, bool is_output) {
  fovea_status status = check_struct_size("", p);
  if (status) return status;
  if (p.flags != 0) return fail(FOVEA_ERR_UNSUPPORTED, "flags: %#" PRIx32 " has bits unknown to this version", p.flags);
  status = check_sizes(p.batch, p.heads_q, p.heads_q, p.seq_q, 0, 0, p.dim_v);
  if (status) return status;
  if (!is_float_type(p.out.dtype))
    return fail(FOVEA_ERR_INVALID_DTYPE, "out.dtype: %" PRId32 " is not a dtype of this tensor", p.out.dtype);
  if (p.out.reserved != 0) return fail(FOVEA_ERR_UNSUPPORTED, "out.reserved: must be 0");
  if (p.seqlens_q && p.cu_seqlens_q)
    return fail(FOVEA_ERR_INVALID_ARGUMENT, "seqlens_q: must be NULL where cu_seqlens_q gives the lengths");
  const Rows rows = rows_of(p, is_output);
  const Operand operands[] = {rows.out, rows.lse};
  for (const Operand &t : operands) {
    status = check_countable(t);
    if (!status) status = check_layout(t);
    if (!status) status = check_address(t);
    if (status) return status;
  }
  status = check_lengths("seqlens_q", p.seqlens_q, p.batch, p.seq_q);
  return status ? status : check_offsets("cu_seqlens_q", p.cu_seqlens_q, p.batch, p.seq_q);
}

// Whether a part has the rows of the result.
fovea_status check_same_rows(const fovea_params &part, const fovea_params &result) {
  const Rows of_part = rows_of(part, false), of_result = rows_of(result, true);
  const char *names[4] = {"batch", "heads_q", "seq_q", "dim_v"};
  for (int a = 0; a < 4; ++a) {
    const int64_t size = of_part.out.size[a], wanted = of_result.out.size[a];
    if (size == wanted) continue;
    if (a == 0 && !part.cu_seqlens_q != !result.cu_seqlens_q)
      return fail(FOVEA_ERR_INVALID_SIZE, "cu_seqlens_q: %s, unlike in the result", part.cu_seqlens_q ? "is given" : "is NULL");
    return fail(FOVEA_ERR_INVALID_SIZE, "%s: %" PRId64 " is not the result's %" PRId64, names[a], size, wanted);
  }
  for (int64_t b = 0; b < of_result.out.size[0]; ++b) {
    const Range has = queries_of(part, b), wanted = queries_of(result, b);
    if (wanted.begin < wanted.end && (has.begin > wanted.begin || has.end < wanted.end))
      return fail(FOVEA_ERR_INVALID_ARGUMENT,
                  "%s: entry %" PRId64 " has the queries [%" PRId64 ", %" PRId64 "), the result [%" PRId64 ", %" PRId64 ")",
                  part.cu_seqlens_q ? "cu_seqlens_q" : "seqlens_q", b, has.begin, has.end, wanted.begin, wanted.end);
  }
  return FOVEA_OK;
}

// Element by element the same memory: a row is read before it is written.
bool same_view(const Operand &a, const Operand &b) {
  if (a.data != b.data || a.element_bytes != b.element_bytes) return false;
  for (int axis = 0; axis < 4; ++axis)
    if (a.stride[axis] != b.stride[axis]) return false;
  return true;
}

fovea_status check_apart_from(const Operand &output, const Operand &other) {
  if (!overlap(output, other)) return FOVEA_OK;
  return fail(FOVEA_ERR_OVERLAP, "%s: overlaps %s of the result", other.name, output.name);
}

fovea_status check_part(const fovea_params &part, const fovea_params &result) {
  fovea_status status = check_same_rows(part, result);
  if (status) return status;
  const Rows from = rows_of(part, false), to = rows_of(result, true);
  if (!same_view(to.out, from.out)) status = check_apart_from(to.out, from.out);
  if (!status && !same_view(to.lse, from.lse)) status = check_apart_from(to.lse, from.lse);
  if (!status) status = check_apart_from(to.out, from.lse);
  if (!status) status = check_apart_from(to.lse, from.out);
  return status;
}

fovea_status check_result(const fovea_params &result) {
  fovea_status status = check_rows(result, true);
  if (status) return status;
  if (result.weights.data) return fail(FOVEA_ERR_INVALID_ARGUMENT, "weights: must be NULL, they are not merged");
  const Rows rows = rows_of(result, true);
  const int32_t *lengths = result.cu_seqlens_q ? result.cu_seqlens_q : result.seqlens_q;
  const int64_t count = !lengths ? 0 : result.cu_seqlens_q ? result.batch + 1 : result.batch;
  const Operand array = array_operand(result.cu_seqlens_q ? "cu_seqlens_q" : "seqlens_q", lengths, count);
  status = check_apart_from(rows.out, rows.lse);
  if (!status) status = check_apart_from(rows.out, array);
  return status ? status : check_apart_from(rows.lse, array);
}

fovea_status check_merge(const fovea_context *c, const fovea_params *const *parts, int32_t count, const fovea_params *result) {
  if (!c) return fail(FOVEA_ERR_NULL_POINTER, "context: must not be NULL");
  if (count < 1) return fail(FOVEA_ERR_INVALID_ARGUMENT, "count: %" PRId32 " is not positive", count);
  if (!parts) return fail(FOVEA_ERR_NULL_POINTER, "parts: must not be NULL");
  if (!result) return fail(FOVEA_ERR_NULL_POINTER, "result: must not be NULL");
  fovea_status status = check_result(*result);
  if (status) return fail_within(status, "result.");
  for (int32_t i = 0; i < count; ++i) {
    if (!parts[i]) return fail(FOVEA_ERR_NULL_POINTER, "parts[%" PRId32 "]: must not be NULL", i);
    status = check_rows(*parts[i], false);
    if (!status) status = check_part(*parts[i], *result);
    if (status) return fail_within(status, "parts[%" PRId32 "].", i);
  }
  return FOVEA_OK;
}

// Dims of a row that are summed at a time, on the stack.
constexpr int64_t kDims = 128;

struct Merge {
  const fovea_params *const *parts;
  int32_t count;
  const fovea_params *result;
  int64_t heads, queries, first_query, rows;  // rows of the result, those behind its lengths counted in
};

struct RowIndex {
  int64_t batch, head, query;
};

float *lse_at(const fovea_params &p, RowIndex r) {
  return p.lse + (r.batch * p.lse_stride[0] + r.head * p.lse_stride[1] + r.query * p.lse_stride[2]);
}

void *out_at(const fovea_params &p, RowIndex r, int64_t dim) {
  if (p.dim_v == 0) return nullptr;  // nor has the tensor an address
  const int64_t *stride = p.out.stride;
  const int64_t index = r.batch * stride[0] + r.head * stride[1] + r.query * stride[2] + dim * stride[3];
  return static_cast<char *>(p.out.data) + index * format_of(p.out.dtype).bytes;
}

void store_row(const float *from, int64_t n, const fovea_params &p, RowIndex r, int64_t dim) {
  store_floats(from, n, out_at(p, r, dim), p.out.dtype, p.out.stride[3]);
}

// The only part of a row that has keys is the row, bit for bit where the types are the same.
void copy_row(const fovea_params &from, const fovea_params &to, RowIndex r) {
  if (to.dim_v != 0)
    convert_elements(out_at(from, r, 0), from.out.dtype, from.out.stride[3], to.dim_v, out_at(to, r, 0), to.out.dtype,
                     to.out.stride[3]);
  *lse_at(to, r) = *lse_at(from, r);
}

// Writes sum / total of all parts with keys, whose weights are exp(lse - most) / total, and returns total.
double merge_dims(const Merge &m, RowIndex r, double most, int64_t dim, int64_t n) {
  double sum[kDims] = {}, total = 0;
  float values[kDims];
  for (int32_t i = 0; i < m.count; ++i) {
    const float lse = *lse_at(*m.parts[i], r);
    if (is_minus_infinity(lse)) continue;
    const double weight = exp(double(lse) - most);
    total += weight;
    const fovea_tensor &out = m.parts[i]->out;
    load_floats(out_at(*m.parts[i], r, dim), out.dtype, out.stride[3], n, values);
    for (int64_t c = 0; c < n; ++c) sum[c] += weight * double(values[c]);
  }
  for (int64_t c = 0; c < n; ++c) values[c] = float(sum[c] / total);
  store_row(values, n, *m.result, r, dim);
  return total;
}

void merge_row(const Merge &m, RowIndex r) {
  const int64_t dim_v = m.result->dim_v;
  const fovea_params *only = nullptr;
  int32_t with_keys = 0;
  double most = -HUGE_VAL;  // stays that where no LSE is a number: all weights are NaN then
  for (int32_t i = 0; i < m.count; ++i) {
    const float lse = *lse_at(*m.parts[i], r);
    if (is_minus_infinity(lse)) continue;
    ++with_keys;
    only = m.parts[i];
    if (double(lse) > most) most = double(lse);
  }
  if (with_keys == 1) return copy_row(*only, *m.result, r);
  const float zeros[kDims] = {};
  double total = 0;
  int64_t dim = 0;
  do {  // at least once: rows without dims have an LSE
    const int64_t n = dim_v - dim < kDims ? dim_v - dim : kDims;
    if (with_keys == 0)
      store_row(zeros, n, *m.result, r, dim);
    else
      total = merge_dims(m, r, most, dim, n);
    dim += kDims;
  } while (dim < dim_v);
  *lse_at(*m.result, r) = with_keys == 0 ? -HUGE_VALF : float(most + log(total));
}

constexpr int64_t kRowsPerTask = 16;

void merge_task(void *arg, int64_t task, int32_t) {
  const Merge &m = *static_cast<const Merge *>(arg);
  const FloatEnvironment saved = enter_float_environment();
  const int64_t end = (task + 1) * kRowsPerTask < m.rows ? (task + 1) * kRowsPerTask : m.rows;
  for (int64_t row = task * kRowsPerTask; row < end; ++row) {
    const int64_t batch = row / m.queries / m.heads, query = m.first_query + row % m.queries;
    if (query < queries_of(*m.result, batch).end) merge_row(m, {batch, row / m.queries % m.heads, query});
  }
  leave_float_environment(saved);
}

// What a merged element takes in the multiply-adds of a kernel that worth_waking_for counts: 0.5 ns beside 50 a ns.
constexpr int64_t kMultiplyAddsPerElement = 25;

void run_merge(Merge m, const Executor &given) {
  const Rows rows = rows_of(*m.result, true);
  if (has_zero(rows.lse.size)) return;
  const Range tokens = m.result->cu_seqlens_q ? queries_of(*m.result, 0) : Range{0, m.result->seq_q};
  m.heads = m.result->heads_q;
  m.first_query = tokens.begin;
  m.queries = tokens.end - tokens.begin;
  m.rows = rows.lse.size[0] * m.heads * m.queries;
  if (m.rows == 0) return;
  const int64_t worth_waking_for = given.worth_waking_for / (kMultiplyAddsPerElement * m.count);
  const Executor executor = m.rows * m.result->dim_v < worth_waking_for ? serial_executor() : given;
  executor.parallel_for(executor.user, merge_task, &m, (m.rows + kRowsPerTask - 1) / kRowsPerTask);
}

}  // namespace
}  // namespace fovea

fovea_status fovea_merge(const fovea_context *c, const fovea_params *const *parts, int32_t count, const fovea_params *result) {
  const fovea_status status = fovea::check_merge(c, parts, count, result);
  if (!status) fovea::run_merge({parts, count, result, 0, 0, 0, 0}, c->executor);
  return status;
}
