#include "api/tuning.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "api/error.h"
#include "dispatch/dispatch.h"

namespace fovea {

// A worker's scratch for dims up to 256 takes at most twice task_bytes, 0.5 MiB of converted keys and values, and 2.5 MiB that 32 panels need
// whatever their dims where vectors have 2048 bits: within the 8 MiB of fovea.h whatever a table says. PlanTest holds it to that.
const TuningParameter kTuningParameters[kTuningParameterCount] = {
    {"panel_rows", &Tuning::panel_rows, 1, INT64_MAX, true},
    {"window_panel_rows", &Tuning::window_panel_rows, 1, INT64_MAX, true},
    {"group_panels", &Tuning::group_panels, 1, 32, false},
    {"task_bytes", &Tuning::task_bytes, 1, 2 << 20, false},
    {"tasks_per_worker", &Tuning::tasks_per_worker, 1, 64, false},
    {"cached_bytes", &Tuning::cached_bytes, 0, int64_t{1} << 40, false},
    {"ahead_bytes", &Tuning::ahead_bytes, 0, 1 << 20, false},
};

namespace {

constexpr int64_t kMostFileBytes = 64 << 10;  // far more than a line for each parameter of each level
constexpr size_t kLineBytes = 256;

struct Table {
  ForwardKernel *kernels;
  bool has_format;
  uint64_t seen[kTuningParameterCount];  // a bit for each level, whose numbers are below 64
};

constexpr fovea_status kFault = FOVEA_ERR_INVALID_ARGUMENT;

char *trim(char *text) {
  constexpr char kSpace[] = " \t\r";
  text += strspn(text, kSpace);
  size_t length = strlen(text);
  while (length > 0 && strchr(kSpace, text[length - 1])) --length;
  text[length] = 0;
  return text;
}

bool read_number(const char *text, int64_t *number) {
  constexpr size_t kMostDigits = 18;  // what an int64_t holds for sure
  const size_t digits = strspn(text, "0123456789");
  if (digits == 0 || digits > kMostDigits || text[digits]) return false;
  *number = 0;
  for (; *text; ++text) *number = *number * 10 + (*text - '0');
  return true;
}

fovea_status check_range(const char *name, int64_t value, const TuningRange &range) {
  if (range.least <= value && value <= range.most && value % range.unit == 0) return FOVEA_OK;
  if (range.unit > 1)
    return fail(kFault, "%s: %" PRId64 " is not a multiple of %" PRId64 " in %" PRId64 "..%" PRId64, name, value, range.unit,
                range.least, range.most);
  return fail(kFault, "%s: %" PRId64 " is not in %" PRId64 "..%" PRId64, name, value, range.least, range.most);
}

fovea_status take_format(Table *table, const char *name, int64_t value) {
  if (strcmp(name, "format") != 0) return fail(kFault, "%s: \"format\" must come first", name);
  if (value != kTuningFormat)
    return fail(kFault, "format: %" PRId64 " is not one known here (%" PRId64 ")", value, kTuningFormat);
  table->has_format = true;
  return FOVEA_OK;
}

fovea_status take_parameter(Table *table, const char *name, int64_t value) {
  if (!strcmp(name, "format")) return fail(kFault, "format: stands there twice");
  const char *dot = strchr(name, '.');
  char level_text[kLineBytes] = "";
  if (dot) memcpy(level_text, name, size_t(dot - name));
  const int32_t level = level_from_name(level_text);
  if (level <= FOVEA_ISA_AUTO) return fail(kFault, "%s: does not begin with the name of a level and a point", name);
  int32_t p = 0;
  while (p < kTuningParameterCount && strcmp(dot + 1, kTuningParameters[p].name) != 0) ++p;
  if (p == kTuningParameterCount) return fail(kFault, "%s: there is no such parameter", name);
  const TuningParameter &parameter = kTuningParameters[p];
  const uint64_t bit = uint64_t{1} << level;
  if (table->seen[p] & bit) return fail(kFault, "%s: stands there twice", name);
  table->seen[p] |= bit;
  fovea_status status = check_range(name, value, {parameter.least, parameter.most, 1});
  const KernelEntry *entries;
  const int32_t count = kernel_entries(&entries);
  for (int32_t i = 0; i < count && !status; ++i) {
    if (entries[i].level != level || !fits_vectors(entries[i], cpu_features())) continue;
    status = check_range(name, value, tuning_range(parameter, entries[i].kernel->shape));
    table->kernels[i].tuning.*parameter.value = value;
  }
  return status;
}

fovea_status take_line(Table *table, char *line) {
  if (char *comment = strchr(line, '#')) *comment = 0;
  char *name = trim(line);
  if (*name == 0) return FOVEA_OK;
  char *equals = strchr(name, '=');
  if (equals == nullptr) return fail(kFault, "\"%.60s\" is not name = number", name);
  *equals = 0;
  name = trim(name);
  const char *text = trim(equals + 1);
  int64_t value;
  if (!read_number(text, &value)) return fail(kFault, "%.60s: \"%.60s\" is not a whole number", name, text);
  if (strlen(name) > 60) return fail(kFault, "%.60s...: there is no such parameter", name);
  return table->has_format ? take_parameter(table, name, value) : take_format(table, name, value);
}

fovea_status read_lines(FILE *file, Table *table) {
  char line[kLineBytes];
  size_t length = 0;
  int64_t bytes = 0;
  for (int32_t number = 1;;) {
    const int c = getc(file);
    if (c == EOF && ferror(file)) return fail(kFault, "%s", strerror(errno));
    if (c == 0) return fail(kFault, "line %" PRId32 ": there is a NUL byte", number);
    if (c != EOF && ++bytes > kMostFileBytes) return fail(kFault, "is larger than %" PRId64 " bytes", kMostFileBytes);
    if (c != '\n' && c != EOF) {
      if (length + 1 == sizeof line) return fail(kFault, "line %" PRId32 ": is longer than %zu bytes", number, length);
      line[length++] = char(c);
      continue;
    }
    line[length] = 0;
    const fovea_status status = take_line(table, line);
    if (status) return fail_within(status, "line %" PRId32 ": ", number);
    if (c == EOF) return table->has_format ? FOVEA_OK : fail(kFault, "there is no \"format = %" PRId64 "\"", kTuningFormat);
    length = 0;
    ++number;
  }
}

}  // namespace

TuningRange tuning_range(const TuningParameter &parameter, const KernelShape &shape) {
  if (parameter.counts_rows) return {shape.row_unit, shape.most_panel_rows, shape.row_unit};
  return {parameter.least, parameter.most, 1};
}

fovea_status load_tuning(const char *asked_by, const char *path, ForwardKernel *kernels) {
  Table table = {kernels, false, {}};
  FILE *file = fopen(path, "re");
  if (!file) return fail(kFault, "%s: %.100s: %s", asked_by, path, strerror(errno));
  fovea_status status = read_lines(file, &table);
  fclose(file);
  if (status) status = fail_within(status, "%s: %.100s: ", asked_by, path);
  return status;
}

}  // namespace fovea
