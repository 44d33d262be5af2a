// A library measured beside Fovea, on the same buffers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "fovea/fovea.h"

namespace fovea::bench {

class Peer {
 public:
  virtual ~Peer() = default;
  virtual std::string name() const = 0;  // library, version and path
  virtual void run() = 0;                // the whole call, on p.q, p.k and p.v, into p.out
  virtual void rearrange() {}            // brings a result of run() that lies in another order into the order of p.out
};

// One way to compute a call that the library offers: a peer, or why it is not to be had.
struct Offer {
  std::string path;
  std::unique_ptr<Peer> peer;
  std::string refusal;
};

// "oneDNN 3.2.0"; "" where the bench was built without a peer.
std::string peer_library();

// Everything the peer library may run from now on is at most this level. Before its first use only; returns what was done.
std::string limit_peers(fovea_isa level);

// All ways to compute p, dense and without a window, on so many threads. Nothing is left to be compiled or allocated in run().
std::vector<Offer> offers(const fovea_params &p, int threads);

}  // namespace fovea::bench
