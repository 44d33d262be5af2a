#include "api/overlap.h"

namespace fovea {
namespace {

// Both questions ask for integers 0 <= z[i] <= most[i] with sum z[i] * stride[i] = target.
struct Term {
  int64_t stride, most;
  int64_t reach, divisor;  // of this term and those after it: the largest sum, the greatest common divisor of the strides
};

constexpr int kMaxTerms = 9;  // the axes of two tensors, and the units of the wider elements

// Real layouts take about 2 steps for each pair of terms. This many take less than a millisecond.
constexpr int kSearchSteps = 1 << 16;

int64_t common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    const int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

bool search(const Term *term, const Term *end, int64_t target, int *steps) {
  if (target == 0) return true;
  if (term == end || target < 0) return false;
  if (--*steps < 0) return true;
  if (target > term->reach || target % term->divisor != 0) return false;
  const int64_t rest = term->reach - term->most * term->stride;
  const int64_t high = target / term->stride < term->most ? target / term->stride : term->most;
  const int64_t low = target > rest ? (target - rest + term->stride - 1) / term->stride : 0;
  for (int64_t z = high; z >= low; --z)
    if (search(term + 1, end, target - z * term->stride, steps)) return true;
  return false;
}

// A sum with terms of falling stride.
struct Sum {
  Term terms[kMaxTerms];
  int count = 0;

  // Terms of one stride are one term.
  void add(int64_t stride, int64_t most) {
    int at = count;
    while (at > 0 && terms[at - 1].stride <= stride) --at;
    if (at < count && terms[at].stride == stride) {
      terms[at].most += most;
      return;
    }
    for (int i = count++; i > at; --i) terms[i] = terms[i - 1];
    terms[at] = {stride, most, 0, 0};
  }

  bool can_be(int64_t target) {
    int64_t reach = 0, divisor = 0;
    for (int i = count - 1; i >= 0; --i) {
      terms[i].reach = reach += terms[i].most * terms[i].stride;
      terms[i].divisor = divisor = common_divisor(terms[i].stride, divisor);
    }
    int steps = kSearchSteps;
    return search(terms, terms + count, target, &steps);
  }
};

// From the first unit of a tensor to its last.
int64_t reach_of(const Elements &e, int64_t unit) {
  int64_t reach = e.bytes / unit - 1;
  for (int a = 0; a < 4; ++a) reach += (e.size[a] - 1) * e.stride[a] * (e.bytes / unit);
  return reach;
}

void add_units(Sum *sum, const Elements &e, int64_t unit) {
  const int64_t units = e.bytes / unit;
  if (units > 1) sum->add(1, units - 1);
  for (int a = 0; a < 4; ++a)
    if (e.size[a] > 1 && e.stride[a] > 0) sum->add(e.stride[a] * units, e.size[a] - 1);
}

}  // namespace

bool overlaps_itself(const Elements &e) {
  int order[4], axes = 0;  // those of more than one element, by falling stride
  for (int a = 0; a < 4; ++a) {
    if (e.size[a] == 1) continue;
    if (e.stride[a] == 0) return true;
    int at = axes++;
    for (; at > 0 && e.stride[order[at - 1]] < e.stride[a]; --at) order[at] = order[at - 1];
    order[at] = a;
  }
  // Two indices that differ first on axis k of this order, by d[k] >= 1, and on the later ones by d[j], |d[j]| < size[j], name one
  // element where d[k] * stride[k] = -sum d[j] * stride[j]. With z[k] = d[k] - 1 and z[j] = d[j] + size[j] - 1 nothing is negative.
  for (int k = 0; k < axes; ++k) {
    int64_t target = -e.stride[order[k]];
    for (int j = k + 1; j < axes; ++j) target += (e.size[order[j]] - 1) * e.stride[order[j]];
    if (target < 0) continue;  // the usual layout: the stride passes over all that the smaller ones span
    Sum sum;
    sum.add(e.stride[order[k]], e.size[order[k]] - 2);
    for (int j = k + 1; j < axes; ++j) sum.add(e.stride[order[j]], 2 * (e.size[order[j]] - 1));
    if (sum.can_be(target)) return true;
  }
  return false;
}

bool overlap(const Elements &a, const Elements &b) {
  // In units of the narrower elements, distance = sum i * a.stride - sum j * b.stride; with size - 1 - j for j nothing is negative.
  const int64_t unit = a.bytes < b.bytes ? a.bytes : b.bytes;
  const int64_t distance = int64_t(b.address - a.address) / unit;
  if (distance > reach_of(a, unit)) return false;
  const int64_t target = distance + reach_of(b, unit);
  if (target < 0) return false;
  Sum sum;
  add_units(&sum, a, unit);
  add_units(&sum, b, unit);
  return sum.can_be(target);
}

}  // namespace fovea
