#include "call.h"

#include <algorithm>
#include <limits>
#include <random>
#include <stdexcept>

#include "core/dtype.h"
#include "reference/element.h"

namespace fovea::bench {
namespace {

constexpr size_t kCheckedRows = 48;

void must(fovea_status status) {
  if (status != FOVEA_OK) throw std::runtime_error(fovea_last_error());
}

size_t size(int64_t count) { return static_cast<size_t>(count); }

bool is_float(fovea_dtype type) { return type == FOVEA_F32 || type == FOVEA_F16 || type == FOVEA_BF16; }

}  // namespace

Call::Call(const Shape &s)
    : tensors_(new Tensors{Buffer(size(s.batch * s.heads_q * s.seq_q * s.dim_k)),
                           Buffer(size(s.batch * s.heads_kv * s.seq_kv * s.dim_k)),
                           Buffer(size(s.batch * s.heads_kv * s.seq_kv * s.dim_v)),
                           Buffer(size(s.batch * s.heads_q * s.seq_q * s.dim_v)),
                           {},
                           {},
                           {},
                           {}}) {
  must(fovea_params_init(&params, sizeof params, s.batch, s.heads_q, s.heads_kv, s.seq_q, s.seq_kv, s.dim_k, s.dim_v));
  params.q.data = tensors_->q.data();
  params.k.data = tensors_->k.data();
  params.v.data = tensors_->v.data();
  params.out.data = tensors_->out.data();
  if (s.causal) {
    params.causal = 1;
    params.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  }
  tensors_->q.fill_normal(1);
  tensors_->k.fill_normal(2);
  tensors_->v.fill_normal(3);
  if (is_float(s.type)) {
    if (s.type != FOVEA_F32) converted_ = convert(&params, s.type);
    for (const auto &[tensor, count] : {std::pair(&params.k, tensors_->k.size()), std::pair(&params.v, tensors_->v.size())}) {
      keys_and_values_.push_back({static_cast<const float *>(tensor->data),
                                  static_cast<int64_t>(count * reference::element_bytes(s.type) / sizeof(float))});
    }
  } else {
    quantise_keys_and_values(s);
  }

  const int64_t rows = s.batch * s.heads_q * s.seq_q;
  std::mt19937_64 random(4);
  for (size_t i = 0; i < kCheckedRows; i++) rows_.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(rows)));
  rows_.insert(rows_.end(), {0, rows - 1});
  std::sort(rows_.begin(), rows_.end());
  rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
  expected_ = reference::attention(params, false, rows_);
}

Call Call::with(const Feature &feature) const {
  Call call = *this;
  call.feature_memory_ = feature.apply(&call.params);
  call.expected_ = reference::attention(call.params, false, rows_);
  return call;
}

reference::Verdict Call::judge(const std::function<void()> &run) {
  tensors_->out.fill(std::numeric_limits<float>::quiet_NaN());
  run();
  return reference::compare(params, expected_, rows_);
}

double Call::bytes() const {
  const int64_t rows = params.batch * params.heads_q * params.seq_q;
  return static_cast<double>(size(rows * (params.dim_k + params.dim_v)) * reference::element_bytes(params.q.dtype)) +
         bytes_of_keys_and_values();
}

double Call::bytes_of_keys_and_values() const {
  double bytes = 0;
  for (const ReadSpan &span : keys_and_values_) bytes += static_cast<double>(span.count) * sizeof(float);
  return bytes;
}

std::vector<ReadSpan> Call::keys_and_values() const { return keys_and_values_; }

// A cache of that type, to which the f32 keys and values are appended.
void Call::quantise_keys_and_values(const Shape &s) {
  const fovea_tensor k_new = params.k, v_new = params.v;
  const auto replace = [&](fovea_tensor *t, int64_t dim, fovea_tensor *scale, std::unique_ptr<Buffer> *data,
                           std::unique_ptr<Buffer> *scales) {
    const int64_t rows = s.batch * s.heads_kv * s.seq_kv;
    const bool blocks = s.type == FOVEA_Q8_0 || s.type == FOVEA_Q4_0;
    const int64_t units = blocks ? dim / kBlockElements : dim;
    const size_t bytes = size(rows * units) * reference::element_bytes(s.type);
    *data = std::make_unique<Buffer>(bytes / sizeof(float) + 1);
    t->data = (*data)->data();
    t->dtype = s.type;
    t->stride[3] = 1;
    t->stride[2] = units;
    t->stride[1] = units * s.seq_kv;
    t->stride[0] = t->stride[1] * s.heads_kv;
    keys_and_values_.push_back({(*data)->data(), static_cast<int64_t>(bytes / sizeof(float))});
    if (s.type != FOVEA_I8) return;
    *scales = std::make_unique<Buffer>(size(rows));
    scale->data = (*scales)->data();
    scale->dtype = FOVEA_F32;
    scale->stride[3] = scale->stride[2] = 1;
    scale->stride[1] = s.seq_kv;
    scale->stride[0] = s.seq_kv * s.heads_kv;
  };
  replace(&params.k, s.dim_k, &params.k_scale, &tensors_->quantised_k, &tensors_->k_scale);
  replace(&params.v, s.dim_v, &params.v_scale, &tensors_->quantised_v, &tensors_->v_scale);
  fovea_context *context = nullptr;
  must(fovea_context_create(nullptr, &context));
  const std::unique_ptr<fovea_context, ContextDeleter> owner(context);
  const std::vector<int32_t> start(size(s.batch), 0), count(size(s.batch), static_cast<int32_t>(s.seq_kv));
  must(fovea_kv_append(context, &params, &k_new, &v_new, start.data(), count.data()));
}

std::vector<char> Call::result() const {
  const char *out = static_cast<const char *>(params.out.data);
  return std::vector<char>(out, out + tensors_->out.size() * reference::element_bytes(params.out.dtype));
}

Forward::Forward(const Call &call, fovea_isa level, int threads) : params_(call.params) {
  fovea_options options;
  must(fovea_options_init(&options, sizeof options));
  options.isa = level;
  options.num_threads = threads;
  fovea_context *context = nullptr;
  must(fovea_context_create(&options, &context));
  context_.reset(context);
  if (fovea_context_isa(context) != level || fovea_context_threads(context) != threads) {
    throw std::runtime_error("the context has another level or other threads than it was asked for");
  }
  must(fovea_workspace_size(context, &params_, &bytes_));
  workspace_ = std::make_unique<Buffer>(bytes_ / sizeof(float) + 1);
}

void Forward::operator()() const { must(fovea_forward(context_.get(), &params_, workspace_->data(), bytes_)); }

}  // namespace fovea::bench
