// The caller's parallel_for may run tasks in any order, on any threads, one worker or many, and even nested inside another call.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "support/call.h"
#include "support/levels.h"

namespace fovea::testing {
namespace {

struct Order {
  enum { kForward, kBackward, kShuffled } kind;
  int64_t tasks = 0;
};

void run_in_order(void *user, fovea_task_fn task, void *arg, int64_t n) {
  Order &order = *static_cast<Order *>(user);
  order.tasks += n;
  std::vector<int64_t> indices(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) indices[size_t(i)] = i;
  if (order.kind == Order::kBackward) std::reverse(indices.begin(), indices.end());
  if (order.kind == Order::kShuffled) std::shuffle(indices.begin(), indices.end(), std::mt19937(7));
  for (const int64_t i : indices) task(arg, i, int32_t(i % 3));  // workers 0, 1, 2 in turn
}

class CallerExecutorTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(CallerExecutorTest);

TEST_P(CallerExecutorTest, AnyOrderOfTasks) {
  const auto serial = this->context(1, "serial");
  for (const Sizes &n : {Sizes{1, 1, 1, 2, 5000, 16, 16}, Sizes{2, 4, 2, 100, 90, 8, 24}}) {
    Call call(n);
    call.fill_random(20);
    call.causal(FOVEA_ALIGN_BOTTOM_RIGHT);
    ASSERT_EQ(call.run(serial.get()), FOVEA_OK);
    const std::vector<float> out = call.out, lse = call.lse, weights = call.weights;
    for (Order order : {Order{Order::kForward}, Order{Order::kBackward}, Order{Order::kShuffled}}) {
      const fovea_executor executor = {sizeof executor, 3, &order, run_in_order};
      fovea_options options;
      ASSERT_EQ(fovea_options_init(&options, sizeof options), FOVEA_OK);
      options.isa = GetParam();
      options.executor = &executor;
      fovea_context *context = nullptr;
      ASSERT_EQ(fovea_context_create(&options, &context), FOVEA_OK);
      EXPECT_EQ(fovea_context_threads(context), 3);
      EXPECT_EQ(call.run(context), FOVEA_OK);
      fovea_context_destroy(context);
      EXPECT_GT(order.tasks, 1) << "the call was not handed out";
      EXPECT_TRUE(same_bits(call.out, out) && same_bits(call.lse, lse) && same_bits(call.weights, weights));
    }
  }
}

}  // namespace
}  // namespace fovea::testing
