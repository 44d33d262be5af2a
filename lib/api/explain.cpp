#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "api/call.h"
#include "api/context.h"
#include "api/tuning.h"

namespace fovea {
namespace {

// Appends to a buffer of which only the first bytes may exist, and counts all.
class Writer {
 public:
  Writer(char *text, size_t capacity) : text_(text), capacity_(text ? capacity : 0), length_(0) {
    if (capacity_) text_[0] = 0;
  }

  __attribute__((format(printf, 2, 3))) void print(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const bool room = length_ < capacity_;
    const int added = vsnprintf(room ? text_ + length_ : nullptr, room ? capacity_ - length_ : 0, format, arguments);
    va_end(arguments);
    if (added > 0) length_ += size_t(added);
  }

  // A JSON string. Names of files are taken for UTF-8, all else is ASCII.
  void quote(const char *s) {
    print("\"");
    for (; *s; ++s) {
      const bool escape = *s == '"' || *s == '\\';
      if (0 < *s && *s < ' ')
        print("\\u%04x", unsigned(*s));
      else
        print("%s%c", escape ? "\\" : "", *s);
    }
    print("\"");
  }

  void field(const char *name, const char *value) {
    print("\"%s\": ", name);
    quote(value);
    print(", ");
  }

  void field(const char *name, int64_t value) { print("\"%s\": %" PRId64 ", ", name, value); }

  size_t length() const { return length_; }

 private:
  char *text_;
  size_t capacity_, length_;
};

// The options that shape the scores, by their fields.
void write_features(Writer *w, const fovea_params &p, const Problem &problem) {
  const struct {
    const char *name;
    bool is_on;
  } features[] = {{"causal", p.causal != 0},
                  {"window_left", p.window_left != -1},
                  {"window_right", p.window_right != -1},
                  {"seqlens_q", p.seqlens_q != nullptr},
                  {"seqlens_kv", p.seqlens_kv != nullptr},
                  {"cu_seqlens_q", p.cu_seqlens_q != nullptr},
                  {"cu_seqlens_kv", p.cu_seqlens_kv != nullptr},
                  {"page_size", p.page_size != 0},
                  {"softcap", problem.softcap != 0},
                  {"alibi_slopes", p.alibi_slopes != nullptr},
                  {"mask", p.mask.data != nullptr},
                  {"sinks", p.sinks != nullptr},
                  {"score", p.score != nullptr}};
  const char *separator = "";
  w->print("\"features\": [");
  for (const auto &feature : features) {
    if (!feature.is_on) continue;
    w->print("%s", separator);
    w->quote(feature.name);
    separator = ", ";
  }
  w->print("], ");
}

const char *type_name(fovea_dtype dtype) {
  switch (dtype) {
    case FOVEA_F16: return "f16";
    case FOVEA_BF16: return "bf16";
    case FOVEA_I8: return "i8";
    case FOVEA_Q8_0: return "q8_0";
    case FOVEA_Q4_0: return "q4_0";
    default: return "f32";
  }
}

void write_types(Writer *w, const fovea_params &p) {
  w->print("\"types\": {\"q\": \"%s\", \"k\": \"%s\", \"v\": \"%s\", \"out\": \"%s\"}, ", type_name(p.q.dtype),
           type_name(p.k.dtype), type_name(p.v.dtype), type_name(p.out.dtype));
}

void write_call(Writer *w, const Call &call) {
  w->field("kernel", call.kernel ? call.kernel->name : "");
  w->field("key_tile", call.kernel ? call.kernel->shape.key_tile : 0);
  for (const TuningParameter &parameter : kTuningParameters)
    w->field(parameter.name, call.kernel ? call.kernel->tuning.*parameter.value : 0);
  w->field("row_blocks", call.plan.row_blocks);
  w->field("rows_per_block", call.plan.rows_per_block);
  w->field("chunk_keys", chunk_keys(call.problem.seq_kv));
  w->field("chunks", call.plan.chunks);
  w->field("splits", call.plan.splits);
  w->field("tasks", call.plan.tasks);
  w->field("mask_map_bytes", call.plan.mask_map.bytes);
  w->field("workspace_bytes", call.plan.workspace_bytes);
}

void write_levels(Writer *w) {
  const LevelList known = known_levels(cpu_features());
  w->print("\"levels\": [");
  for (int32_t i = 0; i < known.count; ++i) {
    const char *refusal = level_refusal(known.levels[i], cpu_features());
    w->print("%s{", i ? ", " : "");
    w->field("name", level_name(known.levels[i]));
    w->print("\"usable\": %s, \"refusal\": ", *refusal ? "false" : "true");
    w->quote(refusal);
    w->print("}");
  }
  w->print("]");
}

}  // namespace
}  // namespace fovea

size_t fovea_explain(const fovea_context *c, const fovea_params *p, char *json, size_t capacity) {
  using namespace fovea;
  Writer w(json, capacity);
  Call call;
  const fovea_status status = prepare(c, p, &call);
  w.print("{");
  w.field("version", fovea_version());
  w.field("status", status);
  w.field("error", status ? fovea_last_error() : "");
  if (c) w.field("level", level_name(c->level));
  if (c) w.field("threads", c->executor.workers);
  if (c) w.field("tuning", c->tuning);
  if (!status) write_features(&w, *p, call.problem);
  if (!status) write_types(&w, *p);
  if (!status) write_call(&w, call);
  write_levels(&w);
  w.print("}");
  return w.length();
}
