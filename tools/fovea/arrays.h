// Arrays in files: NumPy's .npy and safetensors. Numbers are read and written, masks and lengths are read.
#pragma once
#include <cstdint>
#include <list>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fovea/fovea.h"

namespace fovea::tools {

// Dense, the last axis innermost.
struct Array {
  std::vector<int64_t> shape;
  fovea_dtype dtype;  // FOVEA_F32, FOVEA_F16 or FOVEA_BF16; of a mask also FOVEA_BOOL, of a cache all types of k and v
  std::vector<unsigned char> bytes;
};

struct Floats {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

struct Integers {
  std::vector<int64_t> shape;
  std::vector<int32_t> data;
};

// What is wrong with which file.
struct FileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Where an array lies: "file.npy", "file.safetensors" or "file.safetensors:tensor".
struct ArrayPath {
  explicit ArrayPath(const std::string &text);  // throws FileError where it is none of these
  std::string file;
  std::string tensor;  // "" where none is named
  bool safetensors = false;
};

// Readers take .npy in either byte order and either storage order. A safetensors file whose tensor is not named must hold only one, or
// one called default_tensor. Nothing in a file is trusted. They throw FileError.

// float16, bfloat16 (which .npy does not have), float32, or float64 rounded to float32.
Array read_array(const ArrayPath &path, const std::string &default_tensor);

// What read_array() takes, or int8.
Array read_cache(const ArrayPath &path, const std::string &default_tensor);

// uint8, the bytes of blocks of such a type along the last axis, which counts elements in what is returned.
Array read_blocks(const ArrayPath &path, const std::string &default_tensor, fovea_dtype dtype, int64_t block_bytes,
                  int64_t block_elements);

// Booleans, or what read_array() takes, where what is finite stays finite.
Array read_mask(const ArrayPath &path, const std::string &default_tensor);

// float32, or float64 rounded to float32.
Floats read_floats(const ArrayPath &path, const std::string &default_tensor);

// int32, or int64 whose values are those of int32.
Integers read_integers(const ArrayPath &path, const std::string &default_tensor);

// The metadata of a safetensors file: a JSON object of texts, empty where there is none. Throws FileError.
nlohmann::json safetensors_metadata(const std::string &file);

// Whether two names are of one file that exists, by links too, or of one that would exist.
bool is_same_file(const std::string &a, const std::string &b);

// Files that belong together: no name appears before everything is written, and what appears is whole.
class ArrayWriter {
 public:
  ArrayWriter() = default;
  ArrayWriter(const ArrayWriter &) = delete;
  ArrayWriter &operator=(const ArrayWriter &) = delete;
  ~ArrayWriter();  // removes what was not committed

  // Tensors for the same safetensors file are written there side by side. An unnamed one gets default_tensor. What is returned may be
  // filled until commit(). Throws FileError.
  Array &add(const ArrayPath &path, const std::string &default_tensor, Array array);
  void commit();  // throws FileError

 private:
  struct Tensor {
    std::string name;
    Array array;
  };
  struct File {
    std::string name;
    std::string temporary;  // "" before it is made and after it is renamed
    bool safetensors;
    std::list<Tensor> tensors;  // which stay where they are
  };
  std::vector<File> files_;
};

}  // namespace fovea::tools
