// Few queries against a cache, as in decoding: every feature over every kind of cache, within the bound and between guard pages.
#include <gtest/gtest.h>

#include "support/levels.h"

namespace fovea::testing {
namespace {

class DecodeTest : public LevelTest {};
FOVEA_TEST_EVERY_LEVEL(DecodeTest);

const char *const kCaches[] = {"",
                               "type=f16",
                               "pages=16 type=bf16",
                               "pages=7 tk=i8 tv=i8",
                               "tk=q8_0 tv=q8_0",
                               "pages=48 tk=q4_0 tv=q8_0",
                               "tk=i8 tv=q4_0 layout=bshd"};
const char *const kFeatures[] = {"",
                                 "causal=br",
                                 "causal=tl",
                                 "causal=br left=100",
                                 "left=40 right=3 align=tl",
                                 "left=0 right=0",
                                 "softcap=2",
                                 "sinks=1",
                                 "alibi=1",
                                 "mask=bool",
                                 "mask=f32 maskaxes=bhqk",
                                 "mask=bf16 maskfill=low",
                                 "mask=f16 maskfill=late maskaxes=k",
                                 "lens=ragged",
                                 "packed=1 causal=br",
                                 "score=modify",
                                 "score=replace",
                                 "dist=outlier",
                                 "causal=br left=200 softcap=3 sinks=1 alibi=1 mask=f32 lens=ragged score=modify"};

TEST_P(DecodeTest, EveryFeatureOverEveryCache) {
  for (const char *cache : kCaches)
    for (size_t f = 0; f < std::size(kFeatures); ++f)
      for (const int64_t queries : {1, 4, 16}) {
        reference::ProblemLine line;
        const std::string text = std::string("b=3 hq=2 hkv=2 skv=300 dk=32 dv=32 lse=1 threads=3 ") + cache + " " + kFeatures[f];
        ASSERT_EQ(reference::parse(text + " isa=" + level(), &line), "") << text;
        line.seq_q = queries;
        line.heads_q = (f + size_t(queries / 4)) % 2 ? 2 : 6;
        line.weights = line.packed == "0" && line.page_size == 0;
        expect_right(line);
      }
}

}  // namespace
}  // namespace fovea::testing
