// The adapter of oneDNN behind C, for ctypes. A failure is a text that the next call of the same thread replaces.
#include <exception>
#include <string>

#include "peers/peer.h"

namespace {

thread_local std::string text;

struct Offers {
  std::vector<fovea::bench::Offer> all;
};

template <typename F>
bool succeeds(F &&function) {
  try {
    function();
    return true;
  } catch (const std::exception &error) {
    text = error.what();
    return false;
  }
}

}  // namespace

extern "C" {

const char *peer_text() { return text.c_str(); }

const char *peer_library_name() {
  text = fovea::bench::peer_library();
  return text.c_str();
}

// sizes: batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v. f32, contiguous, causal from the last query and key. Null: peer_text().
Offers *peer_offers(const int64_t *sizes, bool causal, float scale, void *q, void *k, void *v, void *out, int threads) {
  fovea_params p = {};
  p.batch = sizes[0], p.heads_q = sizes[1], p.heads_kv = sizes[2], p.seq_q = sizes[3], p.seq_kv = sizes[4];
  p.dim_k = sizes[5], p.dim_v = sizes[6];
  p.q.data = q, p.k.data = k, p.v.data = v, p.out.data = out;
  p.scale = scale, p.causal = causal, p.align = FOVEA_ALIGN_BOTTOM_RIGHT;
  auto *offers = new Offers;
  if (succeeds([&] { offers->all = fovea::bench::offers(p, threads); })) return offers;
  delete offers;
  return nullptr;
}

int peer_count(const Offers *offers) { return static_cast<int>(offers->all.size()); }
const char *peer_path(const Offers *offers, int i) { return offers->all[i].path.c_str(); }
// Why there is no such way; "" where there is one.
const char *peer_refusal(const Offers *offers, int i) { return offers->all[i].refusal.c_str(); }

bool peer_run(Offers *offers, int i) {
  return succeeds([&] { offers->all[i].peer->run(); });
}

void peer_rearrange(Offers *offers, int i) { offers->all[i].peer->rearrange(); }

void peer_free(Offers *offers) { delete offers; }
}
