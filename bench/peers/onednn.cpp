// oneDNN: attention as matmul + softmax + matmul with primitives, and from version 3 on as a graph that it may fuse.
#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <unordered_map>

#include "peers/peer.h"
#if DNNL_VERSION_MAJOR >= 3 && __has_include(<oneapi/dnnl/dnnl_graph.hpp>)
#define FOVEA_ONEDNN_GRAPH 1
#include <oneapi/dnnl/dnnl_graph.hpp>
#endif

namespace fovea::bench {
namespace {

using dnnl::memory;

// The query heads that share a key-value head lie beside each other, so without their keys being copied they are one head with
// group * seq_q rows.
struct Folded {
  int64_t slices, rows;  // batch * heads_kv; group * seq_q
};

Folded fold(const fovea_params &p) { return {p.batch * p.heads_kv, p.heads_q / p.heads_kv * p.seq_q}; }

bool excludes_nothing(const fovea_params &p) { return p.causal == 0 || (p.align == FOVEA_ALIGN_BOTTOM_RIGHT && p.seq_q == 1); }

// 0 where a key is permitted and -infinity where it is not; oneDNN adds it to the scores and still computes them all.
std::vector<float> causal_mask(const fovea_params &p, int64_t rows) {
  const int64_t offset = p.align == FOVEA_ALIGN_BOTTOM_RIGHT ? p.seq_kv - p.seq_q : 0;
  std::vector<float> mask(static_cast<size_t>(rows * p.seq_kv));
  for (int64_t row = 0; row < rows; row++) {
    for (int64_t key = 0; key < p.seq_kv; key++) {
      mask[static_cast<size_t>(row * p.seq_kv + key)] =
          key <= row % p.seq_q + offset ? 0.0f : -std::numeric_limits<float>::infinity();
    }
  }
  return mask;
}

float *data_of(const fovea_tensor &tensor) { return static_cast<float *>(tensor.data); }

const dnnl::engine &cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Batched primitives over `at_once` slices of `rows` query rows at a time.
class Primitives : public Peer {
 public:
  Primitives(const fovea_params &p, int threads, int64_t at_once, int64_t rows, std::string path)
      : path_(std::move(path)), threads_(threads), stream_(cpu()) {
    omp_set_num_threads(threads_);
    const int64_t m = p.seq_kv, dk = p.dim_k, dv = p.dim_v;
    const auto f32 = memory::data_type::f32;
    const memory::desc q({at_once, rows, dk}, f32, memory::dims{rows * dk, dk, 1});
    const memory::desc k({at_once, dk, m}, f32, memory::dims{m * dk, 1, dk});
    const memory::desc s({at_once, rows, m}, f32, memory::dims{rows * m, m, 1});
    const memory::desc v({at_once, m, dv}, f32, memory::dims{m * dv, dv, 1});
    const memory::desc o({at_once, rows, dv}, f32, memory::dims{rows * dv, dv, 1});
    const memory::desc mask({1, rows, m}, f32, memory::dims{rows * m, m, 1});

    const bool masked = !excludes_nothing(p);
    dnnl::primitive_attr scaled;
    dnnl::post_ops then;
#if DNNL_VERSION_MAJOR >= 3
    then.append_eltwise(dnnl::algorithm::eltwise_linear, p.scale, 0);
#else
    scaled.set_output_scales(0, {p.scale});
#endif
    const int mask_index = then.len();
    if (masked) then.append_binary(dnnl::algorithm::binary_add, mask);
    scaled.set_post_ops(then);

#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc qk(cpu(), q, k, s, scaled), pv(cpu(), s, v, o);
    const dnnl::softmax_forward::primitive_desc softmax(cpu(), dnnl::prop_kind::forward_inference,
                                                        dnnl::algorithm::softmax_accurate, s, s, 2);
#else
    const dnnl::matmul::primitive_desc qk(dnnl::matmul::desc(q, k, s), scaled, cpu()), pv(dnnl::matmul::desc(s, v, o), cpu());
    const dnnl::softmax_forward::primitive_desc softmax(dnnl::softmax_forward::desc(dnnl::prop_kind::forward_inference, s, 2),
                                                        cpu());
#endif
    for (const char *implementation : {qk.impl_info_str(), softmax.impl_info_str(), pv.impl_info_str()}) {
      if (std::strncmp(implementation, "ref", 3) == 0)
        throw std::runtime_error("only oneDNN's slow reference implementation does this");
    }
    qk_ = dnnl::matmul(qk);
    softmax_ = dnnl::softmax_forward(softmax);
    pv_ = dnnl::matmul(pv);

    if (masked) mask_ = causal_mask(p, rows);
    const memory scores(s, cpu()), bias(mask, cpu(), masked ? mask_.data() : nullptr);
    softmax_arguments_ = {{DNNL_ARG_SRC, scores}, {DNNL_ARG_DST, scores}};
    const int64_t slices = p.batch * p.heads_q * p.seq_q / rows, sharing = slices / (p.batch * p.heads_kv);
    for (int64_t slice = 0; slice < slices; slice += at_once) {
      const int64_t kv = slice / sharing;
      Arguments first = {{DNNL_ARG_SRC, {q, cpu(), data_of(p.q) + slice * rows * dk}},
                         {DNNL_ARG_WEIGHTS, {k, cpu(), data_of(p.k) + kv * m * dk}},
                         {DNNL_ARG_DST, scores}};
      if (masked) first.insert({DNNL_ARG_ATTR_MULTIPLE_POST_OP(mask_index) | DNNL_ARG_SRC_1, bias});
      qk_arguments_.push_back(std::move(first));
      pv_arguments_.push_back({{DNNL_ARG_SRC, scores},
                               {DNNL_ARG_WEIGHTS, {v, cpu(), data_of(p.v) + kv * m * dv}},
                               {DNNL_ARG_DST, {o, cpu(), data_of(p.out) + slice * rows * dv}}});
    }
  }

  std::string name() const override { return peer_library() + " " + path_; }

  void run() override {
    omp_set_num_threads(threads_);
    for (size_t i = 0; i < qk_arguments_.size(); i++) {
      qk_.execute(stream_, qk_arguments_[i]);
      softmax_.execute(stream_, softmax_arguments_);
      pv_.execute(stream_, pv_arguments_[i]);
    }
    stream_.wait();
  }

 private:
  using Arguments = std::unordered_map<int, memory>;
  std::string path_;
  int threads_;
  dnnl::stream stream_;
  dnnl::primitive qk_, softmax_, pv_;
  std::vector<float> mask_;
  std::vector<Arguments> qk_arguments_, pv_arguments_;
  Arguments softmax_arguments_;
};

Offer offer_primitives(const fovea_params &p, int threads, int64_t at_once, int64_t rows, const std::string &path) {
  try {
    return {path, std::make_unique<Primitives>(p, threads, at_once, rows, path), ""};
  } catch (const std::exception &error) {
    return {path, nullptr, error.what()};
  }
}

#ifdef FOVEA_ONEDNN_GRAPH

namespace graph = dnnl::graph;
using graph::logical_tensor;
using graph::op;

// What is put around QK, scale, softmax and PV: which of these a version makes one partition of, and how fast that is, differs.
enum class Frame { kPlain, kMask, kMaskAndTranspose };

const char *frame_name(Frame frame) {
  switch (frame) {
    case Frame::kPlain: return "graph";
    case Frame::kMask: return "graph with mask";
    default: return "graph with mask and transpose";
  }
}

class Graph : public Peer {
 public:
  // Null where oneDNN does not make one partition of it; refusal says how many.
  static std::unique_ptr<Graph> make(const fovea_params &p, int threads, Frame frame, std::string *refusal) {
    std::unique_ptr<Graph> made(new Graph(p, threads, frame));
    return made->build(refusal) ? std::move(made) : nullptr;
  }

  std::string name() const override { return peer_library() + " " + frame_name(frame_) + ", one partition"; }

  void run() override {
    omp_set_num_threads(threads_);
    compiled_.execute(stream_, inputs_, outputs_);
    stream_.wait();
  }

  // With the transpose the result is [batch, group * seq_q, heads_kv, dim_v].
  void rearrange() override {
    if (frame_ != Frame::kMaskAndTranspose) return;
    const int64_t rows = fold(p_).rows, dv = p_.dim_v;
    float *out = data_of(p_.out);
    const std::vector<float> transposed(out, out + p_.batch * p_.heads_kv * rows * dv);
    for (int64_t batch = 0; batch < p_.batch; batch++) {
      for (int64_t head = 0; head < p_.heads_kv; head++) {
        for (int64_t row = 0; row < rows; row++) {
          std::memcpy(out + ((batch * p_.heads_kv + head) * rows + row) * dv,
                      transposed.data() + ((batch * rows + row) * p_.heads_kv + head) * dv,
                      static_cast<size_t>(dv) * sizeof(float));
        }
      }
    }
  }

 private:
  Graph(const fovea_params &p, int threads, Frame frame) : p_(p), threads_(threads), frame_(frame), stream_(cpu()) {}

  logical_tensor tensor(const logical_tensor::dims &dims) {
    return {id_++, logical_tensor::data_type::f32, dims, logical_tensor::layout_type::strided};
  }

  op node(op::kind kind, const std::vector<logical_tensor> &inputs, const logical_tensor &output) {
    const size_t id = id_++;
    return {id, kind, inputs, {output}, "node " + std::to_string(id)};
  }

  bool build(std::string *refusal) {
    omp_set_num_threads(threads_);
    const int64_t rows = fold(p_).rows, b = p_.batch, h = p_.heads_kv, m = p_.seq_kv;
    const bool masked = !excludes_nothing(p_);
    const logical_tensor q = tensor({b, h, rows, p_.dim_k}), k = tensor({b, h, m, p_.dim_k}), v = tensor({b, h, m, p_.dim_v});
    const logical_tensor scale = tensor({1}), mask = tensor({1, 1, masked ? rows : 1, m});
    const logical_tensor score = tensor({b, h, rows, m}), scaled = tensor({b, h, rows, m}), biased = tensor({b, h, rows, m}),
                         weights = tensor({b, h, rows, m}), out = tensor({b, h, rows, p_.dim_v}),
                         transposed = tensor({b, rows, h, p_.dim_v}), reordered = tensor({b, rows, h, p_.dim_v});
    const bool with_mask = frame_ != Frame::kPlain, with_transpose = frame_ == Frame::kMaskAndTranspose;

    std::vector<op> nodes;
    nodes.push_back(node(op::kind::MatMul, {q, k}, score));
    nodes.back().set_attr<bool>(op::attr::transpose_b, true);
    nodes.push_back(node(op::kind::Multiply, {score, scale}, scaled));
    if (with_mask) nodes.push_back(node(op::kind::Add, {scaled, mask}, biased));
    nodes.push_back(node(op::kind::SoftMax, {with_mask ? biased : scaled}, weights));
    nodes.back().set_attr<int64_t>(op::attr::axis, -1);
    nodes.push_back(node(op::kind::MatMul, {weights, v}, out));
    if (with_transpose) {
      nodes.push_back(node(op::kind::StaticTranspose, {out}, transposed));
      nodes.back().set_attr<std::vector<int64_t>>(op::attr::order, {0, 2, 1, 3});
      nodes.push_back(node(op::kind::Reorder, {transposed}, reordered));
    }
    graph::graph whole(dnnl::engine::kind::cpu);
    for (const op &each : nodes) whole.add_op(each);
    whole.finalize();
    const std::vector<graph::partition> partitions = whole.get_partitions();
    if (partitions.size() != 1 || !partitions[0].is_supported()) {
      *refusal = "not fused: " + std::to_string(partitions.size()) + " partitions";
      return false;
    }

    scale_ = p_.scale;
    mask_ = masked ? causal_mask(p_, rows) : std::vector<float>(static_cast<size_t>(m), 0.0f);
    const std::vector<logical_tensor> ports = partitions[0].get_input_ports(), results = {with_transpose ? reordered : out};
    compiled_ = partitions[0].compile(ports, results, cpu());
    const std::unordered_map<size_t, float *> buffers = {{q.get_id(), data_of(p_.q)},
                                                         {k.get_id(), data_of(p_.k)},
                                                         {v.get_id(), data_of(p_.v)},
                                                         {scale.get_id(), &scale_},
                                                         {mask.get_id(), mask_.data()}};
    for (const logical_tensor &port : ports) inputs_.emplace_back(port, cpu(), buffers.at(port.get_id()));
    outputs_.emplace_back(results[0], cpu(), data_of(p_.out));
    return true;
  }

  const fovea_params p_;
  int threads_;
  Frame frame_;
  dnnl::stream stream_;
  size_t id_ = 0;
  float scale_ = 0;
  std::vector<float> mask_;
  graph::compiled_partition compiled_;
  std::vector<graph::tensor> inputs_, outputs_;
};

Offer offer_graph(const fovea_params &p, int threads, Frame frame) {
  Offer offer = {frame_name(frame), nullptr, ""};
  try {
    offer.peer = Graph::make(p, threads, frame, &offer.refusal);
  } catch (const std::exception &error) {
    offer.refusal = error.what();
  }
  return offer;
}

#endif  // FOVEA_ONEDNN_GRAPH

}  // namespace

std::string peer_library() {
  const dnnl_version_t *version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." + std::to_string(version->patch);
}

std::string limit_peers(fovea_isa level) {
#if defined(__x86_64__)
  const auto limit = [](dnnl::cpu_isa isa, const char *name) {
    return dnnl::set_max_cpu_isa(isa) == dnnl::status::success ? "limited to " + std::string(name) : std::string("not limited");
  };
  if (level == FOVEA_ISA_SCALAR) return limit(dnnl::cpu_isa::sse41, "sse4.1, its lowest");
  if (level == FOVEA_ISA_AVX2) return limit(dnnl::cpu_isa::avx2, "avx2");
#else
  (void)level;
#endif
  return "not limited";
}

std::vector<Offer> offers(const fovea_params &p, int threads) {
  std::vector<Offer> all;
  const Folded folded = fold(p);
  all.push_back(offer_primitives(p, threads, folded.slices, folded.rows, "matmul+softmax+matmul, all heads at once"));
  // One head's scores stay in cache where all heads' do not. A single query is folded, so that its keys are read once a group.
  all.push_back(offer_primitives(p, threads, 1, p.seq_q == 1 ? folded.rows : p.seq_q, "matmul+softmax+matmul, head by head"));
#ifdef FOVEA_ONEDNN_GRAPH
  if (excludes_nothing(p)) all.push_back(offer_graph(p, threads, Frame::kPlain));
  all.push_back(offer_graph(p, threads, Frame::kMask));
  all.push_back(offer_graph(p, threads, Frame::kMaskAndTranspose));
#else
  all.push_back({"graph", nullptr, "this version has no graph API"});
#endif
  return all;
}

}  // namespace fovea::bench
