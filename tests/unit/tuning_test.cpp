// Tables of tuning: what is in a file is in the context, and a file with any fault is refused with its place.
#include "api/tuning.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "api/context.h"
#include "support/tuning.h"

namespace fovea::testing {
namespace {

struct Destroy {
  void operator()(fovea_context *c) const { fovea_context_destroy(c); }
};
using ContextPtr = std::unique_ptr<fovea_context, Destroy>;

fovea_options options_of(const char *tuning, uint32_t flags = 0) {
  fovea_options o;
  EXPECT_EQ(fovea_options_init(&o, sizeof o), FOVEA_OK);
  o.num_threads = 1;
  o.tuning = tuning;
  o.flags = flags;
  return o;
}

ContextPtr context_of(const fovea_options &o) {
  fovea_context *context = nullptr;
  EXPECT_EQ(fovea_context_create(&o, &context), FOVEA_OK) << fovea_last_error();
  return ContextPtr(context);
}

// The text of the refusal.
std::string refusal_of(const fovea_options &o) {
  fovea_context *const untouched = reinterpret_cast<fovea_context *>(&context_of);
  fovea_context *context = untouched;
  EXPECT_EQ(fovea_context_create(&o, &context), FOVEA_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(context, untouched);
  return fovea_last_error();
}

std::string refusal_of_text(const std::string &text) {
  const TemporaryFile file(text);
  const std::string refusal = refusal_of(options_of(file.path())), begin = std::string("options.tuning: ") + file.path() + ": ";
  EXPECT_EQ(refusal.substr(0, begin.size()), begin);
  return refusal.substr(std::min(begin.size(), refusal.size()));
}

class TuningTest : public ::testing::Test {
  const EnvironmentVariable none_{"FOVEA_TUNING", nullptr};
};

TEST_F(TuningTest, EachParameterOfEachLevelIsLoadedAndNoOtherChanges) {
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  for (int32_t e = 0; e < count; ++e) {
    if (!fits_vectors(entries[e], cpu_features())) continue;
    for (const TuningParameter &changed : kTuningParameters) {
      const TuningRange range = tuning_range(changed, entries[e].kernel->shape);
      const int64_t usual = entries[e].kernel->tuning.*changed.value, value = usual == range.least ? range.most : range.least;
      ASSERT_NE(value, usual);
      const TemporaryFile file(std::string("format = 1\n") + level_name(entries[e].level) + "." + changed.name + " = " +
                               std::to_string(value));
      const ContextPtr context = context_of(options_of(file.path()));
      ASSERT_TRUE(context);
      for (int32_t i = 0; i < count; ++i) {
        for (const TuningParameter &parameter : kTuningParameters) {
          const bool is_changed = i == e && &parameter == &changed;
          EXPECT_EQ(context->kernels[i].tuning.*parameter.value, is_changed ? value : entries[i].kernel->tuning.*parameter.value)
              << context->kernels[i].name << " " << parameter.name;
        }
      }
    }
  }
}

TEST_F(TuningTest, DefaultsAreInRange) {
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  for (int32_t e = 0; e < count; ++e) {
    for (const TuningParameter &parameter : kTuningParameters) {
      const TuningRange range = tuning_range(parameter, entries[e].kernel->shape);
      const int64_t value = entries[e].kernel->tuning.*parameter.value;
      EXPECT_TRUE(range.least <= value && value <= range.most && value % range.unit == 0)
          << entries[e].kernel->name << " " << parameter.name;
    }
  }
}

TEST_F(TuningTest, SpacesCommentsAndEndsOfLinesDoNotMatter) {
  for (const char *text : {"format=1\nscalar.group_panels=3",
                           "# fovea tune\n\n \tformat \t= 1 # of the file\r\n\r\n"
                           "scalar.group_panels = 3\r\n# = \n#scalar.group_panels = 4\n",
                           "format = 001\nscalar.group_panels = 000003 #"}) {
    const TemporaryFile file(text);
    const ContextPtr context = context_of(options_of(file.path()));
    ASSERT_TRUE(context) << text;
    EXPECT_EQ(context->kernels[0].tuning.group_panels, 3) << text;
  }
}

TEST_F(TuningTest, LevelsThatAreNotHereAreReadAllTheSame) {
  const TemporaryFile file(
      "format = 1\nneon.panel_rows = 12\nsve.group_panels = 3\navx512.panel_rows = 48\namx.task_bytes = 1000\n");
  EXPECT_TRUE(context_of(options_of(file.path())));
  EXPECT_EQ(refusal_of_text("format = 1\namx.tasks_per_worker = 65\n"), "line 2: amx.tasks_per_worker: 65 is not in 1..64");
}

TEST_F(TuningTest, EveryFaultIsRefusedWithItsLineAndName) {
  const std::string f = "format = 1\n", longest(255, ' ');
  const std::pair<std::string, const char *> faults[] = {
      {"", "there is no \"format = 1\""},
      {"# nothing\n", "there is no \"format = 1\""},
      {"scalar.group_panels = 8\n", "line 1: scalar.group_panels: \"format\" must come first"},
      {"\nformat = 2\n", "line 2: format: 2 is not one known here (1)"},
      {"format = 0\n", "line 1: format: 0 is not one known here (1)"},
      {f + f, "line 2: format: stands there twice"},
      {f + "scalar.group_panels\n", "line 2: \"scalar.group_panels\" is not name = number"},
      {f + "= 8\n", "line 2: : does not begin with the name of a level and a point"},
      {f + "scalar.group_panels = \n", "line 2: scalar.group_panels: \"\" is not a whole number"},
      {f + "scalar.group_panels = -8\n", "line 2: scalar.group_panels: \"-8\" is not a whole number"},
      {f + "scalar.group_panels = 8.0\n", "\"8.0\" is not a whole number"},
      {f + "scalar.group_panels = 0x8\n", "\"0x8\" is not a whole number"},
      {f + "scalar.group_panels = 8 8\n", "\"8 8\" is not a whole number"},
      {f + "scalar.group_panels = 8 = 8\n", "\"8 = 8\" is not a whole number"},
      {f + "scalar.group_panels = 99999999999999999999\n", "\"99999999999999999999\" is not a whole number"},
      {f + "group_panels = 8\n", "line 2: group_panels: does not begin with the name of a level and a point"},
      {f + ".group_panels = 8\n", "line 2: .group_panels: does not begin with the name of a level and a point"},
      {f + "sse9.group_panels = 8\n", "line 2: sse9.group_panels: does not begin with the name of a level and a point"},
      {f + "auto.group_panels = 8\n", "line 2: auto.group_panels: does not begin with the name of a level and a point"},
      {f + "Scalar.group_panels = 8\n", "line 2: Scalar.group_panels: does not begin with the name of a level and a point"},
      {f + "scalar.block_keys = 8\n", "line 2: scalar.block_keys: there is no such parameter"},
      {f + "scalar. = 8\n", "line 2: scalar.: there is no such parameter"},
      {f + "scalar.group_panels.x = 8\n", "line 2: scalar.group_panels.x: there is no such parameter"},
      {f + std::string(100, 'x') + " = 8\n", "x...: there is no such parameter"},
      {f + "scalar.group_panels = 8\n\nscalar.group_panels = 8\n", "line 4: scalar.group_panels: stands there twice"},
      {f + "neon.group_panels = 8\nneon.group_panels = 8\n", "line 3: neon.group_panels: stands there twice"},
      {f + "scalar.group_panels = 0\n", "line 2: scalar.group_panels: 0 is not in 1..32"},
      {f + "scalar.group_panels = 33\n", "line 2: scalar.group_panels: 33 is not in 1..32"},
      {f + "scalar.task_bytes = 2097153\n", "line 2: scalar.task_bytes: 2097153 is not in 1..2097152"},
      {f + "scalar.tasks_per_worker = 0\n", "line 2: scalar.tasks_per_worker: 0 is not in 1..64"},
      {f + "scalar.cached_bytes = 1099511627777\n", "line 2: scalar.cached_bytes: 1099511627777 is not in 0..1099511627776"},
      {f + "scalar.ahead_bytes = 1048577\n", "line 2: scalar.ahead_bytes: 1048577 is not in 0..1048576"},
      {f + "scalar.panel_rows = 0\n", "line 2: scalar.panel_rows: 0 is not in 1.."},
      {f + "scalar.panel_rows = 6\n", "line 2: scalar.panel_rows: 6 is not a multiple of 4 in 4..8"},
      {f + "scalar.window_panel_rows = 12\n", "line 2: scalar.window_panel_rows: 12 is not a multiple of 4 in 4..8"},
      {f + longest + " \n", "line 2: is longer than 255 bytes"},
      {f + std::string("#\0\n", 3), "line 2: there is a NUL byte"},
      {std::string("\0", 1), "line 1: there is a NUL byte"},
  };
  for (const auto &[text, fault] : faults)
    EXPECT_NE(refusal_of_text(text).find(fault), std::string::npos) << text << fovea_last_error();
  const TemporaryFile file(f + longest + "\n");
  EXPECT_TRUE(context_of(options_of(file.path())));
}

TEST_F(TuningTest, LargeFilesAreNotReadToTheirEnd) {
  const std::string line = "# nothing but a comment of 32 bytes\n";
  std::string text = "format = 1\n";
  while (text.size() + line.size() <= 64 << 10) text += line;
  const TemporaryFile file(text);
  EXPECT_TRUE(context_of(options_of(file.path())));
  EXPECT_EQ(refusal_of_text(text + line), "is larger than 65536 bytes");
  EXPECT_NE(refusal_of(options_of("/dev/zero")).find("/dev/zero: line 1: there is a NUL byte"), std::string::npos);
}

TEST_F(TuningTest, FilesThatCannotBeReadAreRefused) {
  EXPECT_EQ(refusal_of(options_of("/nowhere/fovea.tuning")), "options.tuning: /nowhere/fovea.tuning: No such file or directory");
  EXPECT_EQ(refusal_of(options_of("/")), "options.tuning: /: Is a directory");
  const std::string long_name = "/" + std::string(5000, 'n');
  EXPECT_EQ(refusal_of(options_of(long_name.c_str())).rfind("options.tuning: /nnn", 0), 0u);
}

TEST_F(TuningTest, TheEnvironmentNamesAFileUnlessTheOptionsSayOtherwise) {
  const TemporaryFile three("format = 1\nscalar.group_panels = 3\n"), four("format = 1\nscalar.group_panels = 4\n");
  const int64_t usual = context_of(options_of(nullptr))->kernels[0].tuning.group_panels;
  EXPECT_STREQ(fovea_context_tuning(context_of(options_of(nullptr)).get()), "");
  const auto expect = [](const fovea_options &o, int64_t panels, const char *file) {
    const ContextPtr context = context_of(o);
    ASSERT_TRUE(context);
    EXPECT_EQ(context->kernels[0].tuning.group_panels, panels);
    EXPECT_STREQ(fovea_context_tuning(context.get()), file);
  };
  {
    const EnvironmentVariable variable("FOVEA_TUNING", three.path());
    expect(options_of(nullptr), 3, three.path());
    expect(options_of(four.path()), 4, four.path());
    expect(options_of(four.path(), FOVEA_IGNORE_ENV), 4, four.path());
    expect(options_of(nullptr, FOVEA_IGNORE_ENV), usual, "");
    expect(options_of(""), usual, "");
  }
  {
    const EnvironmentVariable variable("FOVEA_TUNING", "");
    expect(options_of(nullptr), usual, "");
  }
  const EnvironmentVariable variable("FOVEA_TUNING", "/nowhere");
  EXPECT_EQ(refusal_of(options_of(nullptr)), "FOVEA_TUNING: /nowhere: No such file or directory");
  expect(options_of(nullptr, FOVEA_IGNORE_ENV), usual, "");
}

TEST_F(TuningTest, AContextKnowsNothingOfWhatBecomesOfItsFile) {
  fovea_params p;
  ASSERT_EQ(fovea_params_init(&p, sizeof p, 1, 2, 2, 2000, 300, 64, 64), FOVEA_OK);
  TemporaryFile file(table(Values::kLeast));
  std::string name = file.path();
  const ContextPtr small = context_of(options_of(name.c_str()));
  size_t small_bytes = 0, again = 0, large_bytes = 0;
  ASSERT_EQ(fovea_workspace_size(small.get(), &p, &small_bytes), FOVEA_OK);
  file.write(table(Values::kMost));
  const ContextPtr large = context_of(options_of(name.c_str()));
  ASSERT_EQ(fovea_workspace_size(large.get(), &p, &large_bytes), FOVEA_OK);
  EXPECT_GT(large_bytes, small_bytes);
  file.write("nonsense");
  name.assign(name.size(), 'x');
  EXPECT_STREQ(fovea_context_tuning(small.get()), file.path());
  ASSERT_EQ(fovea_workspace_size(small.get(), &p, &again), FOVEA_OK);
  EXPECT_EQ(again, small_bytes);
}

TEST_F(TuningTest, ExplainSaysWhichTableAndWhichValues) {
  const TemporaryFile file(table(Values::kMost));
  const ContextPtr context = context_of(options_of(file.path()));
  fovea_params p;
  ASSERT_EQ(fovea_params_init(&p, sizeof p, 1, 1, 1, 1, 1, 1, 1), FOVEA_OK);
  std::vector<char> json(8192);
  ASSERT_LT(fovea_explain(context.get(), &p, json.data(), json.size()), json.size());
  const std::string text = json.data();
  EXPECT_NE(text.find(std::string("\"tuning\": \"") + file.path() + "\""), std::string::npos) << text;
  EXPECT_NE(text.find("\"tasks_per_worker\": 64"), std::string::npos) << text;
}

}  // namespace
}  // namespace fovea::testing
