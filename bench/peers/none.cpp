// Built where no peer library was found.
#include "peers/peer.h"

namespace fovea::bench {

std::string peer_library() { return ""; }
std::string limit_peers(fovea_isa) { return ""; }
std::vector<Offer> offers(const fovea_params &, int) { return {}; }

}  // namespace fovea::bench
