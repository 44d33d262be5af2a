// Arrays in files: NumPy's .npy and safetensors. Floats are read and written, masks and lengths are read.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "fovea/fovea.h"

namespace fovea::tools {

// Dense, the last axis innermost.
struct Array {
  std::vector<int64_t> shape;
  std::vector<float> data;
};

struct Mask {
  std::vector<int64_t> shape;
  fovea_dtype dtype;  // FOVEA_BOOL, FOVEA_F16, FOVEA_BF16 or FOVEA_F32
  std::vector<unsigned char> bytes;
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

// float32, or float64 rounded to float32.
Array read_array(const ArrayPath &path, const std::string &default_tensor);

// Booleans, float16, bfloat16 (which .npy does not have), float32, or float64 rounded to float32, where what is finite stays finite.
Mask read_mask(const ArrayPath &path, const std::string &default_tensor);

// int32, or int64 whose values are those of int32.
Integers read_integers(const ArrayPath &path, const std::string &default_tensor);

// The metadata of a safetensors file: a JSON object of texts, empty where there is none. Throws FileError.
nlohmann::json safetensors_metadata(const std::string &file);

// Files that belong together: no name appears before everything is written, and what appears is whole.
class ArrayWriter {
 public:
  ArrayWriter() = default;
  ArrayWriter(const ArrayWriter &) = delete;
  ArrayWriter &operator=(const ArrayWriter &) = delete;
  ~ArrayWriter();  // removes what was not committed

  // Tensors for the same safetensors file are written there side by side. An unnamed one gets default_tensor. Throws FileError.
  void add(const ArrayPath &path, const std::string &default_tensor, Array array);
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
    std::vector<Tensor> tensors;
  };
  std::vector<File> files_;
};

}  // namespace fovea::tools
