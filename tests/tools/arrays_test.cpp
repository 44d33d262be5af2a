// The readers and writers of array files: what they take, what they refuse, and what they leave behind.
#include "arrays.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace fovea::tools {
namespace {

class ArrayFiles : public testing::Test {
 protected:
  void SetUp() override {
    const testing::TestInfo *test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(testing::TempDir()) / (std::string("fovea-arrays-") + test->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string name(const std::string &file) const { return (folder_ / file).string(); }
  std::string put(const std::string &file, const std::string &bytes) const {
    std::ofstream(name(file), std::ios::binary) << bytes;
    return name(file);
  }
  size_t files() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {})); }

  // The message of the refusal; "" where the file was read.
  static std::string refusal(const std::string &file, const std::string &default_tensor = "q") {
    try {
      read_floats(ArrayPath(file), default_tensor);
    } catch (const FileError &error) {
      EXPECT_NE(std::string(error.what()).find(ArrayPath(file).file), std::string::npos)
          << "the file is not named: " << error.what();
      return error.what();
    }
    return "";
  }
  static testing::AssertionResult refused(const std::string &file, const std::string &reason) {
    const std::string text = refusal(file);
    if (text.find(reason) != std::string::npos) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "wanted a refusal with '" << reason << "', got '" << text << "'";
  }

 private:
  std::filesystem::path folder_;
};

template <class T>
std::string bytes_of(std::initializer_list<T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  std::memcpy(bytes.data(), values.begin(), bytes.size());
  return bytes;
}

std::string npy(const std::string &dictionary, const std::string &data, char version = 1) {
  std::string text = std::string("\x93NUMPY") + version + std::string(1, '\0');
  text += static_cast<char>(dictionary.size());
  text += std::string(version == 1 ? 1 : 3, '\0');
  return text + dictionary + data;
}

std::string safetensors(const std::string &header, const std::string &data) {
  return bytes_of<uint64_t>({header.size()}) + header + data;
}

Array floats(const std::vector<int64_t> &shape, const std::vector<float> &numbers) {
  Array array{shape, FOVEA_F32, std::vector<unsigned char>(numbers.size() * sizeof(float))};
  if (!numbers.empty()) std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
  return array;
}

const std::string kFour = bytes_of<float>({1, 2, 3, 4});

TEST_F(ArrayFiles, EveryRankSurvivesARoundTrip) {
  for (const char *file : {"a.npy", "a.safetensors"}) {
    for (const std::vector<int64_t> &shape :
         std::vector<std::vector<int64_t>>{{}, {5}, {2, 3}, {2, 3, 4}, {1, 2, 3, 4}, {0, 7}, {7, 0}}) {
      std::vector<float> numbers;
      int64_t count = 1;
      for (const int64_t size : shape) count *= size;
      for (int64_t i = 0; i < count; ++i) numbers.push_back(static_cast<float>(i) - 0.5f);
      ArrayWriter writer;
      writer.add(ArrayPath(name(file)), "t", floats(shape, numbers));
      writer.commit();
      const Floats back = read_floats(ArrayPath(name(file)), "t");
      EXPECT_EQ(back.shape, shape) << file;
      EXPECT_EQ(back.data, numbers) << file;
    }
  }
}

TEST_F(ArrayFiles, DataOfWrittenFilesIsAligned) {
  ArrayWriter writer;
  writer.add(ArrayPath(name("a.npy")), "t", floats({3}, {1, 2, 3}));
  writer.add(ArrayPath(name("a.safetensors")), "t", floats({3}, {1, 2, 3}));
  writer.commit();
  EXPECT_EQ((std::filesystem::file_size(name("a.npy")) - 3 * sizeof(float)) % 64, 0u);
  EXPECT_EQ((std::filesystem::file_size(name("a.safetensors")) - 3 * sizeof(float)) % 8, 0u);
}

TEST_F(ArrayFiles, NpyVersionsOrdersAndTypesAreRead) {
  const std::vector<float> rows = {1, 2, 3, 4}, columns = {1, 3, 2, 4};
  const std::string c = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
  for (const char version : {1, 2, 3}) EXPECT_EQ(read_floats(ArrayPath(put("a.npy", npy(c, kFour, version))), "").data, rows);
  const std::string f = "{\"descr\":\"<f4\",\"fortran_order\":True,\"shape\":(2,2)}\n";
  EXPECT_EQ(read_floats(ArrayPath(put("f.npy", npy(f, kFour))), "").data, columns);
  const std::string wide = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }";
  EXPECT_EQ(read_floats(ArrayPath(put("d.npy", npy(wide, bytes_of<double>({1, 2, 3, 4})))), "").data, rows);
  const std::string big = "{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }";
  EXPECT_EQ(read_floats(ArrayPath(put("b.npy", npy(big, std::string("\x3f\x80\0\0", 4)))), "").data, std::vector<float>{1});
}

TEST_F(ArrayFiles, FortranOrderOfThreeAxesIsTurnedRound) {
  const std::string header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 1, 3), }";
  const Floats array = read_floats(ArrayPath(put("a.npy", npy(header, bytes_of<float>({0, 10, 1, 11, 2, 12})))), "");
  EXPECT_EQ(array.data, (std::vector<float>{0, 1, 2, 10, 11, 12}));
}

template <class T>
std::vector<T> numbers_of(const Array &mask) {
  std::vector<T> numbers(mask.bytes.size() / sizeof(T));
  std::memcpy(numbers.data(), mask.bytes.data(), mask.bytes.size());
  return numbers;
}

TEST_F(ArrayFiles, MasksOfEveryTypeAreRead) {
  const auto of_type = [](const std::string &descr) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2, 1), }";
  };
  const auto read = [&](const std::string &descr, const std::string &data) {
    return read_mask(ArrayPath(put("m.npy", npy(of_type(descr), data))), "");
  };
  const Array booleans = read("|b1", std::string("\0\1", 2));
  EXPECT_EQ(booleans.dtype, FOVEA_BOOL);
  EXPECT_EQ(booleans.shape, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(booleans.bytes, (std::vector<unsigned char>{0, 1}));
  const Array half = read("<f2", bytes_of<uint16_t>({0x3c00, 0xfc00}));
  EXPECT_EQ(half.dtype, FOVEA_F16);
  EXPECT_EQ(numbers_of<uint16_t>(half), (std::vector<uint16_t>{0x3c00, 0xfc00}));
  EXPECT_EQ(numbers_of<uint16_t>(read(">f2", std::string("\x3c\0\xfc\0", 4))), (std::vector<uint16_t>{0x3c00, 0xfc00}));
  const Array single = read("<f4", bytes_of<float>({1, -2}));
  EXPECT_EQ(single.dtype, FOVEA_F32);
  EXPECT_EQ(numbers_of<float>(single), (std::vector<float>{1, -2}));
  const Array brain =
      read_mask(ArrayPath(put("m.safetensors", safetensors(R"({"m":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})",
                                                           bytes_of<uint16_t>({0x3f80, 0xff80})))),
                "");
  EXPECT_EQ(brain.dtype, FOVEA_BF16);
  EXPECT_EQ(numbers_of<uint16_t>(brain), (std::vector<uint16_t>{0x3f80, 0xff80}));
  const Array truths =
      read_mask(ArrayPath(put("m.safetensors",
                              safetensors(R"({"m":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", std::string("\1\0", 2)))),
                "");
  EXPECT_EQ(truths.dtype, FOVEA_BOOL);
  EXPECT_EQ(truths.bytes, (std::vector<unsigned char>{1, 0}));
}

TEST_F(ArrayFiles, CachesAreOfBytesToo) {
  const std::string minus_one_to_two = bytes_of<int8_t>({-1, 0, 1, 2});
  const std::string npy_i8 = put("a.npy", npy("{'descr': '|i1', 'fortran_order': False, 'shape': (2, 2)}", minus_one_to_two));
  const std::string tensor = R"({"t": {"dtype": "I8", "shape": [2, 2], "data_offsets": [0, 4]}})";
  const std::string safetensors_i8 = put("a.safetensors", safetensors(tensor, minus_one_to_two));
  for (const std::string &file : {npy_i8, safetensors_i8}) {
    const Array array = read_cache(ArrayPath(file), "t");
    EXPECT_EQ(array.dtype, FOVEA_I8);
    EXPECT_EQ(array.shape, std::vector<int64_t>({2, 2}));
    EXPECT_EQ(array.bytes, std::vector<unsigned char>({255, 0, 1, 2}));
    EXPECT_THROW(read_array(ArrayPath(file), "t"), FileError);
    EXPECT_THROW(read_blocks(ArrayPath(file), "t", FOVEA_Q4_0, 2, 32), FileError);
  }
  const std::string blocks = put("b.npy", npy("{'descr': '|u1', 'fortran_order': False, 'shape': (3, 4)}", "abcdefghijkl"));
  const Array array = read_blocks(ArrayPath(blocks), "t", FOVEA_Q4_0, 2, 32);
  EXPECT_EQ(array.dtype, FOVEA_Q4_0);
  EXPECT_EQ(array.shape, std::vector<int64_t>({3, 64}));
  EXPECT_EQ(std::string(array.bytes.begin(), array.bytes.end()), "abcdefghijkl");
  EXPECT_THROW(read_blocks(ArrayPath(blocks), "t", FOVEA_Q4_0, 3, 32), FileError);
  EXPECT_THROW(read_cache(ArrayPath(blocks), "t"), FileError);
}

TEST_F(ArrayFiles, NumbersOf16BitsKeepTheirBits) {
  const std::vector<unsigned char> bytes = {0x00, 0x3c, 0x01, 0xfc};
  const auto round_trip = [&](const std::string &file, fovea_dtype dtype) {
    ArrayWriter writer;
    writer.add(ArrayPath(name(file)), "t", {{2}, dtype, bytes});
    writer.commit();
    const Array back = read_array(ArrayPath(name(file)), "t");
    EXPECT_EQ(back.dtype, dtype) << file;
    EXPECT_EQ(back.shape, std::vector<int64_t>{2}) << file;
    EXPECT_EQ(back.bytes, bytes) << file;
  };
  round_trip("h.npy", FOVEA_F16);
  round_trip("h.safetensors", FOVEA_F16);
  round_trip("b.safetensors", FOVEA_BF16);
  ArrayWriter writer;
  EXPECT_THROW(writer.add(ArrayPath(name("b.npy")), "t", {{2}, FOVEA_BF16, bytes}), FileError);
}

TEST_F(ArrayFiles, WhatIsAddedMayBeFilledUntilItIsWritten) {
  ArrayWriter writer;
  Array &first = writer.add(ArrayPath(name("a.safetensors")), "first", floats({1}, {0}));
  for (const char *more : {"b", "c", "d"}) writer.add(ArrayPath(name("a.safetensors")), more, floats({1}, {0}));
  writer.add(ArrayPath(name("e.npy")), "e", floats({1}, {0}));
  first = floats({1}, {7});
  writer.commit();
  EXPECT_EQ(read_floats(ArrayPath(name("a.safetensors:first")), "").data, std::vector<float>{7});
}

TEST_F(ArrayFiles, FilesAreTheSameByWhateverNameLeadsThere) {
  put("a.npy", "a");
  put("b.npy", "a");
  std::filesystem::create_hard_link(name("a.npy"), name("hard.npy"));
  std::filesystem::create_symlink("a.npy", name("soft.npy"));
  std::filesystem::create_directory_symlink(".", name("here"));
  for (const char *other : {"a.npy", "./a.npy", "hard.npy", "soft.npy", "here/a.npy", "here/soft.npy"}) {
    EXPECT_TRUE(is_same_file(name("a.npy"), name(other))) << other;
  }
  EXPECT_TRUE(is_same_file(name("new.npy"), name("here/new.npy"))) << "where there is none yet";
  EXPECT_FALSE(is_same_file(name("a.npy"), name("b.npy")));
  EXPECT_FALSE(is_same_file(name("a.npy"), name("new.npy")));
  EXPECT_FALSE(is_same_file(name("new.npy"), name("other.npy")));
}

TEST_F(ArrayFiles, AFiniteMaskValueStaysFinite) {
  const std::string header = "{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }";
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  const Array mask = read_mask(ArrayPath(put("m.npy", npy(header, bytes_of<double>({-1e300, 1e300, -kInfinity, 0.1})))), "");
  EXPECT_EQ(mask.dtype, FOVEA_F32);
  EXPECT_EQ(numbers_of<float>(mask), (std::vector<float>{-kLargest, kLargest, -std::numeric_limits<float>::infinity(), 0.1f}));
}

TEST_F(ArrayFiles, IntegersOfBothWidthsAreRead) {
  const auto header = [](const std::string &descr) {
    return "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2,), }";
  };
  const std::vector<int32_t> wanted = {3, -4};
  EXPECT_EQ(read_integers(ArrayPath(put("i.npy", npy(header("<i4"), bytes_of<int32_t>({3, -4})))), "").data, wanted);
  EXPECT_EQ(read_integers(ArrayPath(put("i.npy", npy(header("<i8"), bytes_of<int64_t>({3, -4})))), "").data, wanted);
  const std::string file =
      put("i.safetensors", safetensors(R"({"n":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})", bytes_of<int32_t>({3, -4})));
  EXPECT_EQ(read_integers(ArrayPath(file), "").data, wanted);
  const auto refusal_of_integers = [&](const std::string &name) -> std::string {
    try {
      read_integers(ArrayPath(name), "");
    } catch (const FileError &error) {
      return error.what();
    }
    return "";
  };
  const std::string wide = put("i.npy", npy(header("<i8"), bytes_of<int64_t>({3, int64_t{1} << 31})));
  EXPECT_NE(refusal_of_integers(wide).find("holds 2147483648"), std::string::npos);
  const std::string floats = put("i.npy", npy(header("<f4"), bytes_of<float>({3, 4})));
  EXPECT_NE(refusal_of_integers(floats).find("'<f4'; only int32 and int64"), std::string::npos);
}

TEST_F(ArrayFiles, WrongNpyFilesAreRefused) {
  const std::string good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }";
  EXPECT_TRUE(refused(name("missing.npy"), "No such file"));
  EXPECT_TRUE(refused(put("a.npy", ""), "ends within the .npy header"));
  EXPECT_TRUE(refused(put("a.npy", "not numpy at all"), "not an .npy file"));
  EXPECT_TRUE(refused(put("a.npy", npy(good, kFour, 9)), "version 9"));
  EXPECT_TRUE(refused(put("a.npy", npy(good, kFour.substr(1))), "ends within the data"));
  EXPECT_TRUE(refused(put("a.npy", npy(good, kFour + "x")), "goes on after the data"));
  const auto header = [&](const std::string &dictionary) { return put("a.npy", npy(dictionary, kFour)); };
  EXPECT_TRUE(refused(header("{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }"), "'<i4'"));
  EXPECT_TRUE(refused(header("{'descr': '<f2', 'fortran_order': False, 'shape': (2, 2), }"), "'<f2'"));
  EXPECT_TRUE(refused(header("{'descr': '|b1', 'fortran_order': False, 'shape': (16, 1), }"), "'|b1'"));
  EXPECT_TRUE(refused(header("{'descr': '|f4', 'fortran_order': False, 'shape': (2, 2), }"), "'|f4'"));
  EXPECT_TRUE(refused(header("{'descr': '', 'fortran_order': False, 'shape': (2, 2), }"), "type ''"));
  EXPECT_TRUE(refused(header("{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (2, 2), }"), "records"));
  EXPECT_TRUE(refused(header("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 4), }"), "too large"));
  EXPECT_TRUE(
      refused(header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 2), }"), "ends within the data"));
  for (const char *malformed :
       {"", "{", "{}", "{'descr': '<f4', 'fortran_order': False, }", "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -2), }",
        "{'descr': '<f4, 'fortran_order': False, 'shape': (2, 2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 2), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), } x",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,), }", "{'more': 1}"}) {
    EXPECT_TRUE(refused(header(malformed), "malformed")) << malformed;
  }
}

TEST_F(ArrayFiles, WrongSafetensorsFilesAreRefused) {
  const auto file = [&](const std::string &header) { return put("a.safetensors", safetensors(header, kFour)); };
  EXPECT_TRUE(refused(put("a.safetensors", "short"), "ends within the safetensors header"));
  EXPECT_TRUE(refused(put("a.safetensors", bytes_of<uint64_t>({1u << 30}) + "{}"), "longer than the format allows"));
  EXPECT_TRUE(refused(put("a.safetensors", bytes_of<uint64_t>({UINT64_MAX}) + "{}"), "longer than the format allows"));
  EXPECT_TRUE(refused(put("a.safetensors", bytes_of<uint64_t>({50}) + "{}"), "ends within the safetensors header"));
  EXPECT_TRUE(refused(file("{nonsense"), "not a JSON object"));
  EXPECT_TRUE(refused(file("[]"), "not a JSON object"));
  EXPECT_TRUE(refused(file("{}"), "holds no tensor"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F16","shape":[8],"data_offsets":[0,16]}})"), "type F16"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[4],"data_offsets":[0,20]}})"), "outside the file"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})"), "outside the file"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})"), "differ in size"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[5],"data_offsets":[0,16]}})"), "ends within the data"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})"), "bad size"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}})"), "too large"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":4,"data_offsets":[0,16]}})"), "malformed"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":32,"shape":[4],"data_offsets":[0,16]}})"), "malformed"));
  EXPECT_TRUE(refused(file(R"({"q":{"dtype":"F32","shape":[4]}})"), "malformed"));
  EXPECT_TRUE(refused(file(R"({"q":7})"), "malformed"));
}

TEST_F(ArrayFiles, TheTensorIsFoundByName) {
  const std::string two =
      put("two.safetensors", safetensors(R"({"__metadata__":{"a":"b"},"k":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                                         R"("q":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                                         kFour));
  EXPECT_EQ(read_floats(ArrayPath(two), "q").data, (std::vector<float>{3, 4}));
  EXPECT_EQ(read_floats(ArrayPath(two + ":k"), "q").data, (std::vector<float>{1, 2}));
  EXPECT_NE(refusal(two, "v").find("there are: k, q"), std::string::npos);
  EXPECT_EQ(safetensors_metadata(two), nlohmann::json({{"a", "b"}}));
  const std::string one =
      put("one.safetensors", safetensors(R"({"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})", kFour));
  EXPECT_EQ(read_floats(ArrayPath(one), "q").data, (std::vector<float>{1, 2, 3, 4}));
  EXPECT_EQ(safetensors_metadata(one), nlohmann::json::object());
}

TEST_F(ArrayFiles, NamesOfOtherKindsOfFilesAreRefused) {
  for (const char *text : {"a.txt", "a", "", "a.npy:x", "a.safetensors:", "a.safetensors:__metadata__"}) {
    EXPECT_THROW(ArrayPath{text}, FileError) << text;
  }
  EXPECT_EQ(ArrayPath("d.safetensors:x/a.safetensors:y:z").file, "d.safetensors:x/a.safetensors");
}

TEST_F(ArrayFiles, NothingAppearsUnlessAllIsWritten) {
  {
    ArrayWriter writer;
    writer.add(ArrayPath(name("a.npy")), "a", floats({1}, {1}));
    writer.add(ArrayPath(name("no/such/folder/b.npy")), "b", floats({1}, {1}));
    EXPECT_THROW(writer.commit(), FileError);
  }
  EXPECT_EQ(files(), 0u);
  {
    ArrayWriter writer;
    writer.add(ArrayPath(name("a.npy")), "a", floats({1}, {1}));
  }
  EXPECT_EQ(files(), 0u) << "an array that was not committed";
  std::filesystem::create_directory(name("d.npy"));
  {
    ArrayWriter writer;
    writer.add(ArrayPath(name("a.npy")), "a", floats({1}, {1}));
    writer.add(ArrayPath(name("d.npy")), "d", floats({1}, {1}));
    EXPECT_THROW(writer.commit(), FileError);
  }
  EXPECT_EQ(files(), 1u) << "the folder alone";
}

TEST_F(ArrayFiles, AFileThatCannotBeWrittenIsLeftAsItWas) {
  put("a.npy", "precious");
  ArrayWriter writer;
  writer.add(ArrayPath(name("a.npy")), "a", floats({1}, {1}));
  writer.add(ArrayPath(name("no/such/folder/b.npy")), "b", floats({1}, {1}));
  EXPECT_THROW(writer.commit(), FileError);
  EXPECT_EQ(std::filesystem::file_size(name("a.npy")), 8u);
}

TEST_F(ArrayFiles, OutputsShareASafetensorsFileButNoNameAndNoNpyFile) {
  ArrayWriter writer;
  writer.add(ArrayPath(name("a.safetensors")), "out", floats({2}, {1, 2}));
  writer.add(ArrayPath(name("./a.safetensors")), "lse", floats({1}, {3}));
  EXPECT_THROW(writer.add(ArrayPath(name("a.safetensors:out")), "weights", floats({1}, {4})), FileError);
  writer.add(ArrayPath(name("b.npy")), "out", floats({1}, {4}));
  EXPECT_THROW(writer.add(ArrayPath(name("b.npy")), "lse", floats({1}, {4})), FileError);
  writer.commit();
  EXPECT_EQ(read_floats(ArrayPath(name("a.safetensors:lse")), "").data, std::vector<float>{3});
  EXPECT_EQ(read_floats(ArrayPath(name("a.safetensors")), "out").data, (std::vector<float>{1, 2}));
  EXPECT_EQ(files(), 2u);
}

}  // namespace
}  // namespace fovea::tools
