// The keys and values of a dense call in pages.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "support/call.h"
#include "support/elements.h"

namespace fovea::testing {

// The cache of a dense call once more, in pages: shuffled, with a page of no entry among them. Slots of no key hold `filler`.
struct Pages {
  Pages(const Call &dense, const std::vector<int32_t> &lengths, int32_t page_size, fovea_dtype dtype,
        float filler = std::nanf(""))
      : lengths(lengths),
        columns((dense.n.seq_kv + page_size - 1) / page_size),
        count(dense.n.batch * columns + 1),
        k(dtype, std::vector<float>(size_t(count * page_size * dense.n.heads_kv * dense.n.dim_k), filler)),
        v(dtype, std::vector<float>(size_t(count * page_size * dense.n.heads_kv * dense.n.dim_v), filler)),
        table(size_t(count)) {
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(19));
    const Sizes &n = dense.n;
    for (int64_t b = 0; b < n.batch; ++b)
      for (int64_t h = 0; h < n.heads_kv; ++h)
        for (int64_t j = 0; j < lengths[size_t(b)]; ++j) {
          const int64_t page = table[size_t(b * columns + j / page_size)];
          const int64_t to = (page * n.heads_kv + h) * page_size + j % page_size, from = (b * n.heads_kv + h) * n.seq_kv + j;
          for (int64_t d = 0; d < n.dim_k; ++d) k.set(size_t(to * n.dim_k + d), double{dense.k[size_t(from * n.dim_k + d)]});
          for (int64_t d = 0; d < n.dim_v; ++d) v.set(size_t(to * n.dim_v + d), double{dense.v[size_t(from * n.dim_v + d)]});
        }
    params = dense.params;
    set_dense(&params.k, n.heads_kv, page_size, n.dim_k);
    set_dense(&params.v, n.heads_kv, page_size, n.dim_v);
    k.become(&params.k);
    v.become(&params.v);
    params.weights.data = nullptr;
    params.seqlens_kv = this->lengths.data();
    params.page_size = page_size;
    params.num_pages = count;
    params.block_table = table.data();
    params.block_table_stride = columns;
  }

  static void set_dense(fovea_tensor *t, int64_t heads, int64_t slots, int64_t dim) {
    t->stride[0] = heads * slots * dim, t->stride[1] = slots * dim, t->stride[2] = dim, t->stride[3] = 1;
  }

  std::vector<int32_t> lengths;
  int64_t columns, count;
  Elements k, v;
  std::vector<int32_t> table;
  fovea_params params;
};

}  // namespace fovea::testing
