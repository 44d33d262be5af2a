#include "arrays.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cfloat>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

namespace fovea::tools {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers in these files are little-endian and are read as they lie");

constexpr char kNpyMagic[] = "\x93NUMPY";
constexpr uint64_t kNpyAlignment = 64;                   // of the data, by the format
constexpr uint64_t kSafetensorsMaxHeader = 100'000'000;  // the limit of the format's own reader
constexpr uint64_t kSafetensorsAlignment = 8;            // of the data, by the format

bool ends_with(const std::string &text, const std::string &suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

// A file that is read from its beginning to its end, and never beyond.
class InputFile {
 public:
  explicit InputFile(const std::string &name) : name_(name) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(name, error)) fail(error ? error.message() : "not a regular file");
    stream_.open(name, std::ios::binary);
    if (!stream_) fail(std::strerror(errno));
    left_ = std::filesystem::file_size(name, error);
    if (error) fail(error.message());
  }

  [[noreturn]] void fail(const std::string &what) const { throw FileError(name_ + ": " + what); }
  uint64_t left() const { return left_; }

  void read(void *to, uint64_t bytes, const char *what) {
    if (bytes > left_) fail(std::string("ends within ") + what);
    stream_.read(static_cast<char *>(to), static_cast<std::streamsize>(bytes));
    if (!stream_) fail(std::string("cannot read ") + what);
    left_ -= bytes;
  }
  std::string read_text(uint64_t bytes, const char *what) {
    if (bytes > left_) fail(std::string("ends within ") + what);  // before the memory is asked for
    std::string text(bytes, '\0');
    read(text.data(), bytes, what);
    return text;
  }
  void skip(uint64_t bytes, const char *what) {
    if (bytes > left_) fail(std::string("ends within ") + what);
    stream_.seekg(static_cast<std::streamoff>(bytes), std::ios::cur);
    left_ -= bytes;
  }

 private:
  std::string name_;
  std::ifstream stream_;
  uint64_t left_ = 0;
};

// The number of elements of a shape, all of which must fit in so many bytes.
uint64_t element_count(const InputFile &file, const std::vector<int64_t> &shape, uint64_t element_bytes, uint64_t bytes) {
  uint64_t count = 1;
  for (const int64_t size : shape) {
    if (size < 0) file.fail("negative size in the shape");
    if (size == 0) return 0;
  }
  for (const int64_t size : shape) {
    if (__builtin_mul_overflow(count, static_cast<uint64_t>(size), &count)) file.fail("the shape is too large");
  }
  if (count > bytes / element_bytes) file.fail("ends within the data that the shape announces");
  return count;
}

enum class Number { kBool, kI8, kU8, kI32, kI64, kF16, kBF16, kF32, kF64 };

struct NumberFormat {
  Number number;
  uint64_t bytes;
  const char *npy;  // without the byte order; "" where the format has no such numbers
  const char *safetensors;
};
constexpr NumberFormat kNumberFormats[] = {
    {Number::kBool, 1, "b1", "BOOL"}, {Number::kI8, 1, "i1", "I8"},   {Number::kU8, 1, "u1", "U8"},
    {Number::kI32, 4, "i4", "I32"},   {Number::kI64, 8, "i8", "I64"}, {Number::kF16, 2, "f2", "F16"},
    {Number::kBF16, 2, "", "BF16"},   {Number::kF32, 4, "f4", "F32"}, {Number::kF64, 8, "f8", "F64"},
};

// What a reader takes, and how it calls that.
struct Accepted {
  std::vector<Number> numbers;
  const char *names;
};

const NumberFormat *find_format(const Accepted &accepted, const char *NumberFormat::*name, const std::string &wanted) {
  for (const NumberFormat &format : kNumberFormats) {
    if (wanted.empty() || wanted != format.*name) continue;
    const auto &numbers = accepted.numbers;
    return std::find(numbers.begin(), numbers.end(), format.number) != numbers.end() ? &format : nullptr;
  }
  return nullptr;
}

// An array whose data comes next in its file.
struct StoredArray {
  std::vector<int64_t> shape;
  NumberFormat format;
  uint64_t count;
  bool swapped, fortran_order;  // bytes of a number; axes, the first one innermost
};

// The header of an .npy file is a Python dictionary: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }.
struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

class NpyHeaderParser {
 public:
  NpyHeaderParser(const InputFile &file, const std::string &text) : file_(file), text_(text) {}

  NpyHeader parse() {
    NpyHeader header;
    bool have_descr = false, have_order = false, have_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::string key = string();
      expect(':');
      if (key == "descr") {
        if (peek() != '\'' && peek() != '"') file_.fail("holds records; only arrays of plain numbers can be read");
        header.descr = string();
        have_descr = true;
      } else if (key == "fortran_order") {
        header.fortran_order = boolean();
        have_order = true;
      } else if (key == "shape") {
        header.shape = shape();
        have_shape = true;
      } else {
        bad();
      }
      if (!accept(',') && peek() != '}') bad();
    }
    if (peek() != '\0' || !have_descr || !have_order || !have_shape) bad();
    return header;
  }

 private:
  [[noreturn]] void bad() const { file_.fail("the .npy header is malformed"); }
  char peek() {
    while (at_ < text_.size() && std::strchr(" \t\n", text_[at_]) != nullptr) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) bad();
  }
  std::string string() {
    const char quote = peek();
    if (quote != '\'' && quote != '"') bad();
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string::npos) bad();
    std::string value = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return value;
  }
  bool boolean() {
    const bool value = peek() == 'T';
    const std::string word = value ? "True" : "False";
    if (text_.compare(at_, word.size(), word) != 0) bad();
    at_ += word.size();
    return value;
  }
  std::vector<int64_t> shape() {
    std::vector<int64_t> sizes;
    expect('(');
    while (!accept(')')) {
      if (peek() < '0' || peek() > '9') bad();
      int64_t size = 0;
      for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
        if (__builtin_mul_overflow(size, int64_t{10}, &size) || __builtin_add_overflow(size, text_[at_] - '0', &size)) bad();
      }
      sizes.push_back(size);
      if (!accept(',') && peek() != ')') bad();
    }
    return sizes;
  }

  const InputFile &file_;
  const std::string &text_;
  size_t at_ = 0;
};

// From first-axis-innermost to last-axis-innermost, elements of so many bytes.
void from_fortran_order(const std::vector<int64_t> &shape, size_t element_bytes, const char *from, char *to, const char *to_end) {
  std::vector<int64_t> index(shape.size(), 0), stride(shape.size(), static_cast<int64_t>(element_bytes));
  for (size_t axis = 1; axis < shape.size(); ++axis) stride[axis] = stride[axis - 1] * shape[axis - 1];
  for (; to != to_end; to += element_bytes) {
    std::memcpy(to, from, element_bytes);
    for (size_t axis = shape.size(); axis-- > 0;) {
      from += stride[axis];
      if (++index[axis] < shape[axis]) break;
      from -= stride[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}

template <class T>
std::vector<T> read_numbers(InputFile &file, const StoredArray &stored) {
  std::vector<T> numbers(stored.count);
  file.read(numbers.data(), stored.count * sizeof(T), "the data");
  if (stored.swapped) {
    for (T &number : numbers) {
      char *bytes = reinterpret_cast<char *>(&number);
      std::reverse(bytes, bytes + sizeof(T));
    }
  }
  if (!stored.fortran_order || stored.count == 0) return numbers;
  std::vector<T> ordered(numbers.size());
  char *begin = reinterpret_cast<char *>(ordered.data());
  from_fortran_order(stored.shape, sizeof(T), reinterpret_cast<const char *>(numbers.data()), begin,
                     begin + ordered.size() * sizeof(T));
  return ordered;
}

StoredArray find_npy(InputFile &file, const Accepted &accepted) {
  const std::string start = file.read_text(8, "the .npy header");
  if (start.compare(0, 6, kNpyMagic, 6) != 0) file.fail("not an .npy file");
  const int version = static_cast<unsigned char>(start[6]);
  if (version < 1 || version > 3) file.fail("unknown .npy version " + std::to_string(version));
  uint32_t header_bytes = 0;  // two bytes in version 1, four later; little-endian
  file.read(&header_bytes, version == 1 ? 2 : 4, "the .npy header");
  const std::string text = file.read_text(header_bytes, "the .npy header");
  const NpyHeader header = NpyHeaderParser(file, text).parse();

  const char order = header.descr.empty() ? '\0' : header.descr[0];
  const NumberFormat *format = header.descr.empty() ? nullptr : find_format(accepted, &NumberFormat::npy, header.descr.substr(1));
  if (format == nullptr || !(order == '<' || order == '>' || (order == '|' && format->bytes == 1))) {
    file.fail("holds numbers of type '" + header.descr + "'; only " + accepted.names + " can be read");
  }
  const uint64_t count = element_count(file, header.shape, format->bytes, file.left());
  if (file.left() != count * format->bytes) file.fail("goes on after the data that the shape announces");
  return {header.shape, *format, count, order == '>', header.fortran_order};
}

nlohmann::json read_safetensors_header(InputFile &file) {
  uint64_t header_bytes = 0;
  file.read(&header_bytes, sizeof header_bytes, "the safetensors header");
  if (header_bytes > kSafetensorsMaxHeader)
    file.fail("not a safetensors file: its header would be longer than the format allows");
  const std::string text = file.read_text(header_bytes, "the safetensors header");
  nlohmann::json header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) file.fail("not a safetensors file: its header is not a JSON object");
  return header;
}

StoredArray find_safetensors(InputFile &file, const ArrayPath &path, const std::string &default_tensor,
                             const Accepted &accepted) {
  nlohmann::json header = read_safetensors_header(file);
  header.erase("__metadata__");

  std::string name = path.tensor;
  if (name.empty()) {
    if (header.empty()) file.fail("holds no tensor");
    name = header.size() == 1 ? header.begin().key() : default_tensor;
  }
  const auto found = header.find(name);
  if (found == header.end()) {
    std::string names;
    for (const auto &item : header.items()) names += (names.empty() ? "" : ", ") + item.key();
    file.fail("holds no tensor '" + name + "'; name one as " + path.file + ":TENSOR (there are: " + names + ")");
  }

  std::string dtype;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  try {
    dtype = found->at("dtype").get<std::string>();
    if (!found->at("shape").is_array() || !found->at("data_offsets").is_array()) {
      file.fail("tensor '" + name + "': the description is malformed");
    }
    for (const nlohmann::json &size : found->at("shape")) {
      if (!size.is_number_unsigned() || size.get<uint64_t>() > INT64_MAX)
        file.fail("tensor '" + name + "': bad size in the shape");
      shape.push_back(size.get<int64_t>());
    }
    for (const nlohmann::json &offset : found->at("data_offsets")) {
      if (!offset.is_number_unsigned()) file.fail("tensor '" + name + "': bad data offset");
      offsets.push_back(offset.get<uint64_t>());
    }
  } catch (const nlohmann::json::exception &) {
    file.fail("tensor '" + name + "': the description is malformed");
  }
  const NumberFormat *format = find_format(accepted, &NumberFormat::safetensors, dtype);
  if (format == nullptr) {
    file.fail("tensor '" + name + "' holds numbers of type " + dtype + "; only " + accepted.names + " can be read");
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > file.left()) {
    file.fail("tensor '" + name + "': the data lies outside the file");
  }
  const uint64_t count = element_count(file, shape, format->bytes, offsets[1] - offsets[0]);
  if (count * format->bytes != offsets[1] - offsets[0]) file.fail("tensor '" + name + "': shape and data differ in size");
  file.skip(offsets[0], "the data");
  return {shape, *format, count, /*swapped=*/false, /*fortran_order=*/false};
}

// Finds the array; read_numbers() of the same file then reads it.
StoredArray find_array(InputFile &file, const ArrayPath &path, const std::string &default_tensor, const Accepted &accepted) {
  return path.safetensors ? find_safetensors(file, path, default_tensor, accepted) : find_npy(file, accepted);
}

template <class T>
std::vector<unsigned char> bytes_of(const std::vector<T> &numbers) {
  const auto *bytes = reinterpret_cast<const unsigned char *>(numbers.data());
  return std::vector<unsigned char>(bytes, bytes + numbers.size() * sizeof(T));
}

// Numbers that the library takes as they are, or float64 by way of to_float.
template <class ToFloat>
Array read_elements(const ArrayPath &path, const std::string &default_tensor, const Accepted &accepted, ToFloat to_float) {
  InputFile file(path.file);
  const StoredArray stored = find_array(file, path, default_tensor, accepted);
  switch (stored.format.number) {
    case Number::kBool: return {stored.shape, FOVEA_BOOL, read_numbers<unsigned char>(file, stored)};
    case Number::kI8: return {stored.shape, FOVEA_I8, read_numbers<unsigned char>(file, stored)};
    case Number::kF16: return {stored.shape, FOVEA_F16, bytes_of(read_numbers<uint16_t>(file, stored))};
    case Number::kBF16: return {stored.shape, FOVEA_BF16, bytes_of(read_numbers<uint16_t>(file, stored))};
    case Number::kF32: return {stored.shape, FOVEA_F32, bytes_of(read_numbers<float>(file, stored))};
    default: break;
  }
  std::vector<float> numbers;
  for (const double wide : read_numbers<double>(file, stored)) numbers.push_back(to_float(wide));
  return {stored.shape, FOVEA_F32, bytes_of(numbers)};
}

float rounded(double wide) { return static_cast<float>(wide); }
float rounded_finite(double wide) {
  return static_cast<float>(std::isfinite(wide) ? std::clamp<double>(wide, -FLT_MAX, FLT_MAX) : wide);
}

// The folder's true name, and the file's in it, which may be that of a link.
std::filesystem::path place_of(const std::string &name) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(name, error).lexically_normal();
  return std::filesystem::weakly_canonical(whole.parent_path(), error) / whole.filename();
}

// How files write the numbers of an output.
const NumberFormat &format_of(fovea_dtype dtype) {
  const Number number = dtype == FOVEA_F16 ? Number::kF16 : dtype == FOVEA_BF16 ? Number::kBF16 : Number::kF32;
  return *std::find_if(std::begin(kNumberFormats), std::end(kNumberFormats),
                       [&](const NumberFormat &format) { return format.number == number; });
}

std::string npy_header(const Array &array) {
  std::string shape;
  for (const int64_t size : array.shape) shape += std::to_string(size) + ", ";
  if (array.shape.size() > 1) shape.resize(shape.size() - 2);  // (2, 3), but (2, )
  const std::string descr = std::string("<") + format_of(array.dtype).npy;
  std::string dictionary = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (" + shape + "), }";
  const uint64_t prefix = sizeof kNpyMagic - 1 + 2 + 2;  // magic, version, length
  dictionary.append(kNpyAlignment - (prefix + dictionary.size() + 1) % kNpyAlignment, ' ');
  dictionary += '\n';
  std::string header(kNpyMagic, sizeof kNpyMagic - 1);
  header += {'\x01', '\x00', static_cast<char>(dictionary.size() & 0xff), static_cast<char>(dictionary.size() >> 8)};
  return header + dictionary;
}

}  // namespace

ArrayPath::ArrayPath(const std::string &text) : file(text) {
  const std::string marker = ".safetensors:";
  const size_t at = text.rfind(marker);
  if (at != std::string::npos) {
    file = text.substr(0, at + marker.size() - 1);
    tensor = text.substr(at + marker.size());
    if (tensor.empty()) throw FileError(text + ": the tensor's name is missing after the colon");
    if (tensor == "__metadata__") throw FileError(text + ": __metadata__ is not a tensor");
  }
  safetensors = ends_with(file, ".safetensors");
  if (!safetensors && !ends_with(file, ".npy")) throw FileError(text + ": the name must end in .npy or .safetensors");
}

Array read_array(const ArrayPath &path, const std::string &default_tensor) {
  const std::vector<Number> numbers = {Number::kF16, Number::kBF16, Number::kF32, Number::kF64};
  return read_elements(path, default_tensor, {numbers, "float16, bfloat16, float32 and float64"}, rounded);
}

Array read_cache(const ArrayPath &path, const std::string &default_tensor) {
  const std::vector<Number> numbers = {Number::kI8, Number::kF16, Number::kBF16, Number::kF32, Number::kF64};
  return read_elements(path, default_tensor, {numbers, "int8, float16, bfloat16, float32 and float64"}, rounded);
}

Array read_blocks(const ArrayPath &path, const std::string &default_tensor, fovea_dtype dtype, int64_t block_bytes,
                  int64_t block_elements) {
  InputFile file(path.file);
  const StoredArray stored = find_array(file, path, default_tensor, {{Number::kU8}, "uint8"});
  Array array = {stored.shape, dtype, read_numbers<unsigned char>(file, stored)};
  if (array.shape.empty() || array.shape.back() % block_bytes != 0) {
    file.fail("the last axis is not a number of blocks of " + std::to_string(block_bytes) + " bytes");
  }
  array.shape.back() = array.shape.back() / block_bytes * block_elements;
  return array;
}

Array read_mask(const ArrayPath &path, const std::string &default_tensor) {
  const std::vector<Number> numbers = {Number::kBool, Number::kF16, Number::kBF16, Number::kF32, Number::kF64};
  return read_elements(path, default_tensor, {numbers, "bool, float16, bfloat16, float32 and float64"}, rounded_finite);
}

Floats read_floats(const ArrayPath &path, const std::string &default_tensor) {
  InputFile file(path.file);
  const StoredArray stored = find_array(file, path, default_tensor, {{Number::kF32, Number::kF64}, "float32 and float64"});
  if (stored.format.number == Number::kF32) return {stored.shape, read_numbers<float>(file, stored)};
  const std::vector<double> wide = read_numbers<double>(file, stored);
  return {stored.shape, std::vector<float>(wide.begin(), wide.end())};
}

Integers read_integers(const ArrayPath &path, const std::string &default_tensor) {
  InputFile file(path.file);
  const StoredArray stored = find_array(file, path, default_tensor, {{Number::kI32, Number::kI64}, "int32 and int64"});
  if (stored.format.number == Number::kI32) return {stored.shape, read_numbers<int32_t>(file, stored)};
  Integers integers{stored.shape, {}};
  for (const int64_t wide : read_numbers<int64_t>(file, stored)) {
    if (wide < INT32_MIN || wide > INT32_MAX) file.fail("holds " + std::to_string(wide) + ", which is not a number of 32 bits");
    integers.data.push_back(static_cast<int32_t>(wide));
  }
  return integers;
}

nlohmann::json safetensors_metadata(const std::string &name) {
  InputFile file(name);
  nlohmann::json header = read_safetensors_header(file);
  nlohmann::json metadata = header.value("__metadata__", nlohmann::json::object());
  if (!metadata.is_object()) file.fail("the metadata is not a JSON object");
  return metadata;
}

ArrayWriter::~ArrayWriter() {
  for (const File &file : files_) {
    if (!file.temporary.empty()) std::remove(file.temporary.c_str());
  }
}

bool is_same_file(const std::string &a, const std::string &b) {
  std::error_code error;
  return place_of(a) == place_of(b) || std::filesystem::equivalent(a, b, error);
}

Array &ArrayWriter::add(const ArrayPath &path, const std::string &default_tensor, Array array) {
  if (!path.safetensors && array.dtype == FOVEA_BF16) {
    throw FileError(path.file + ": .npy files have no bfloat16; name a .safetensors file or another type");
  }
  auto file = std::find_if(files_.begin(), files_.end(), [&](const File &f) { return is_same_file(f.name, path.file); });
  if (file == files_.end()) {
    files_.push_back({path.file, "", path.safetensors, {}});
    file = files_.end() - 1;
  } else if (!path.safetensors || !file->safetensors) {
    throw FileError(path.file + ": named for two outputs, and an .npy file holds one array");
  } else if (place_of(file->name) != place_of(path.file)) {
    throw FileError(path.file + ": is " + file->name + " by another name; give one name for all outputs that go there");
  }
  const std::string name = path.tensor.empty() ? default_tensor : path.tensor;
  for (const Tensor &tensor : file->tensors) {
    if (tensor.name == name) throw FileError(path.file + ": two outputs would be called '" + name + "'");
  }
  file->tensors.push_back({name, std::move(array)});
  return file->tensors.back().array;
}

void ArrayWriter::commit() {
  for (File &file : files_) {
    std::error_code ignored;
    if (std::filesystem::is_directory(file.name, ignored)) throw FileError(file.name + ": is a directory");
    std::string header;
    if (file.safetensors) {
      nlohmann::json description = nlohmann::json::object();
      uint64_t offset = 0;
      for (const Tensor &tensor : file.tensors) {
        const uint64_t end = offset + tensor.array.bytes.size();
        description[tensor.name] = {
            {"dtype", format_of(tensor.array.dtype).safetensors}, {"shape", tensor.array.shape}, {"data_offsets", {offset, end}}};
        offset = end;
      }
      std::string text = description.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      text.resize((text.size() + kSafetensorsAlignment - 1) / kSafetensorsAlignment * kSafetensorsAlignment, ' ');
      const uint64_t bytes = text.size();
      header.assign(reinterpret_cast<const char *>(&bytes), sizeof bytes);
      header += text;
    } else {
      header = npy_header(file.tensors.front().array);
    }

    errno = 0;
    file.temporary = file.name + "." + std::to_string(getpid()) + ".tmp";
    std::ofstream stream(file.temporary, std::ios::binary | std::ios::trunc);
    if (!stream) {
      const std::string reason = std::strerror(errno);
      file.temporary.clear();  // not made, so not ours to remove
      throw FileError(file.name + ": " + reason);
    }
    stream.write(header.data(), static_cast<std::streamsize>(header.size()));
    for (const Tensor &tensor : file.tensors) {
      const std::vector<unsigned char> &bytes = tensor.array.bytes;
      stream.write(reinterpret_cast<const char *>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    }
    stream.close();
    if (!stream) throw FileError(file.name + ": " + (errno != 0 ? std::strerror(errno) : "cannot be written"));
  }
  for (File &file : files_) {
    if (std::rename(file.temporary.c_str(), file.name.c_str()) != 0) throw FileError(file.name + ": " + std::strerror(errno));
    file.temporary.clear();
  }
}

}  // namespace fovea::tools
