#include "dispatch/dispatch.h"
#include "fovea/fovea.h"

#define FOVEA_TEXT_OF(number) #number
#define FOVEA_TEXT(number) FOVEA_TEXT_OF(number)

const char *fovea_version(void) {
  return FOVEA_TEXT(FOVEA_VERSION_MAJOR) "." FOVEA_TEXT(FOVEA_VERSION_MINOR) "." FOVEA_TEXT(FOVEA_VERSION_PATCH);
}

int32_t fovea_isa_list(fovea_isa *out, int32_t capacity, int32_t usable_only) {
  const fovea::LevelList known = fovea::known_levels(fovea::cpu_features());
  int32_t count = 0;
  for (int32_t i = 0; i < known.count; ++i) {
    if (usable_only && *fovea_isa_refusal(known.levels[i])) continue;
    if (out && count < capacity) out[count] = known.levels[i];
    ++count;
  }
  return count;
}

const char *fovea_isa_name(fovea_isa isa) { return fovea::level_name(isa); }

const char *fovea_isa_refusal(fovea_isa isa) {
  return isa == FOVEA_ISA_AUTO ? "" : fovea::level_refusal(isa, fovea::cpu_features());
}
