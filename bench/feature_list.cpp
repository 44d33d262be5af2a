#include "feature_list.h"

#include <array>
#include <random>

#include "reference/element.h"

namespace fovea::bench {
namespace {

// So far below their row's largest score, exponentials are near FLT_MIN (exp(-88) is just below), subnormal (-95) or 0.
constexpr std::array<float, 4> kNearTheFloor = {-88, -95, -200, -1e4f};

float *allocate(FeatureMemory *memory, size_t bytes) {
  memory->push_back(std::make_shared<Buffer>((bytes + sizeof(float) - 1) / sizeof(float)));
  return memory->back()->data();
}

// A mask [1, 1, seq_q, seq_kv]; value(query, key).
template <class Element, class Value>
FeatureMemory mask(fovea_params *p, fovea_dtype dtype, Value value) {
  FeatureMemory memory;
  p->mask.data = allocate(&memory, static_cast<size_t>(p->seq_q * p->seq_kv) * sizeof(Element));
  p->mask.stride[0] = p->mask.stride[1] = 0;  // the same for all entries and heads
  p->mask.dtype = dtype;
  auto *element = static_cast<Element *>(p->mask.data);
  for (int64_t i = 0; i < p->seq_q; i++) {
    for (int64_t j = 0; j < p->seq_kv; j++) *element++ = static_cast<Element>(value(i, j));
  }
  return memory;
}

template <class Value>
FeatureMemory boolean_mask(fovea_params *p, Value value) {
  return mask<unsigned char>(p, FOVEA_BOOL, value);
}

template <class Value>
FeatureMemory float_mask(fovea_params *p, Value value) {
  return mask<float>(p, FOVEA_F32, value);
}

// Keys of the first half are as good as excluded.
Feature half_low(float low, const char *name) {
  return {std::string("f32 mask: ") + name + " on half of the keys", 1.20, [low](fovea_params *p) {
            const int64_t half = p->seq_kv / 2;
            return float_mask(p, [=](int64_t, int64_t j) { return j < half ? low : 0; });
          }};
}

const std::vector<Feature> &features() {
  static const std::vector<Feature> all = {
      {"none (the noise)", 0, [](fovea_params *) { return FeatureMemory(); }},
      {"causal", 0.55,
       [](fovea_params *p) {
         p->causal = 1;
         p->align = FOVEA_ALIGN_BOTTOM_RIGHT;
         return FeatureMemory();
       }},
      {"causal window of 256 keys", 0.12,
       [](fovea_params *p) {
         p->causal = 1;
         p->align = FOVEA_ALIGN_BOTTOM_RIGHT;
         p->window_left = 255;  // and the query's own position
         return FeatureMemory();
       }},
      {"softcap 50", 1.30,
       [](fovea_params *p) {
         p->softcap = 50;
         return FeatureMemory();
       }},
      {"ALiBi", 1.08,
       [](fovea_params *p) {
         FeatureMemory memory;
         float *slopes = allocate(&memory, static_cast<size_t>(p->heads_q) * sizeof(float));
         fovea_alibi_slopes(p->heads_q, slopes);
         p->alibi_slopes = slopes;
         p->align = FOVEA_ALIGN_BOTTOM_RIGHT;
         return memory;
       }},
      {"boolean mask: all true", 1.08, [](fovea_params *p) { return boolean_mask(p, [](int64_t, int64_t) { return 1; }); }},
      {"boolean mask: 8 segments", 0.20,
       [](fovea_params *p) {
         return boolean_mask(p, [=](int64_t i, int64_t j) { return 8 * i / p->seq_q == 8 * j / p->seq_kv; });
       }},
      {"f32 mask: normal", 1.20,
       [](fovea_params *p) {
         std::mt19937 random(5);
         std::normal_distribution<float> normal;
         return float_mask(p, [&](int64_t, int64_t) { return normal(random); });
       }},
      half_low(kNearTheFloor[0], "-88"),
      half_low(kNearTheFloor[1], "-95"),
      half_low(kNearTheFloor[2], "-200"),
      half_low(kNearTheFloor[3], "-1e4"),
      {"f32 mask: 0, -88, -95, -200, -1e4 at random", 1.20,
       [](fovea_params *p) {
         std::mt19937 random(6);
         return float_mask(p, [&](int64_t, int64_t) {
           const size_t lot = random() % (kNearTheFloor.size() + 1);
           return lot < kNearTheFloor.size() ? kNearTheFloor[lot] : 0;
         });
       }},
  };
  return all;
}

const std::vector<Feature> &types() {
  constexpr double kMost = 1 / 0.95, kMostByBf16Dot = 1 / 1.2;  // half of the products take half of their time
  static const std::vector<Feature> all = {
      {"f32 (the noise)", 0, [](fovea_params *) { return FeatureMemory(); }},
      {"f16", kMost, [](fovea_params *p) { return convert(p, FOVEA_F16); }},
      {"bf16", kMost, [](fovea_params *p) { return convert(p, FOVEA_BF16); }, kMostByBf16Dot},
  };
  return all;
}

}  // namespace

FeatureMemory convert(fovea_params *p, fovea_dtype dtype) {
  FeatureMemory memory;
  const auto replace = [&](fovea_tensor *tensor, int64_t heads, int64_t tokens, int64_t dim) {
    const int64_t elements = p->batch * heads * tokens * dim;
    void *converted = allocate(&memory, static_cast<size_t>(elements) * reference::element_bytes(dtype));
    for (int64_t i = 0; i < elements; i++)
      reference::write_element(converted, dtype, i, double{static_cast<const float *>(tensor->data)[i]});
    tensor->data = converted;
    tensor->dtype = dtype;
  };
  replace(&p->q, p->heads_q, p->seq_q, p->dim_k);
  replace(&p->k, p->heads_kv, p->seq_kv, p->dim_k);
  replace(&p->v, p->heads_kv, p->seq_kv, p->dim_v);
  replace(&p->out, p->heads_q, p->seq_q, p->dim_v);
  return memory;
}

std::vector<Comparison> comparisons(const std::string &set) {
  if (set == "features") return {{set, parse_shape("1,8,8,4096,4096,64"), features()}};
  std::vector<Comparison> all;
  if (set == "types") {
    for (const char *shape : {"1,8,8,4096,4096,64", "1,32,8,2048,2048,128 causal", "8,12,12,512,512,64"})
      all.push_back({set, parse_shape(shape), types()});
  }
  return all;
}

}  // namespace fovea::bench
