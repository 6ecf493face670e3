#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <span>
#include <string>

#include "core/format.h"
#include "core/safetensors_header.h"
#include "core/temporary_file.h"
#include "packhorse/error.h"
#include "packhorse/weight_source.h"
#include "test.h"

namespace packhorse {
namespace {

std::string with_length(uint64_t length, const std::string& rest) {
  std::string text;
  for (int i = 0; i < 8; ++i) text += static_cast<char>(length >> (8 * i) & 0xff);
  return text + rest;
}

std::string safetensors(const std::string& header, size_t data_bytes) {
  std::string data;
  for (size_t i = 0; i < data_bytes; ++i) data += static_cast<char>(i);
  return with_length(header.size(), header + data);
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return concat('"', name, R"(":{"dtype":")", dtype, R"(","shape":[)", shape,
                R"(],"data_offsets":[)", offsets, "]}");
}

void open(const std::string& content) {
  const TemporaryFile file(content);
  open_safetensors({file.path()});
}

void open_tensors(const std::string& tensors, size_t data_bytes) {
  open(safetensors("{" + tensors + "}", data_bytes));
}

TEST(safetensors_serves_tensors) {
  const TemporaryFile file(safetensors(
      "{"
      R"("__metadata__":{"format":"pt"},)" +
          tensor("b.matrix", "F16", "2,3", "8,20") + "," + tensor("a.vector", "F32", "2", "0,8") +
          "," + tensor("scalar", "I64", "", "20,28") + "," +
          tensor("none", "BF16", "0,7", "28,28") + "," + tensor("cube", "U8", "2,1,2", "28,32") +
          "}  ",
      32));
  const auto source = open_safetensors({file.path()});
  CHECK(source->names() ==
        (std::vector<std::string>{"a.vector", "b.matrix", "cube", "none", "scalar"}));
  const TensorView matrix = source->find("b.matrix");
  CHECK(matrix.describe() == "float16[2, 3]");
  CHECK(matrix.row_stride == 3);
  CHECK(matrix.as<char>()[0] == 8);
  CHECK(matrix.as<char>()[11] == 19);
  CHECK(source->find("a.vector").describe() == "float32[2]");
  CHECK(source->find("scalar").describe() == "int64[1]");
  CHECK(source->find("none").describe() == "bfloat16[0, 7]");
  CHECK(source->find("none"));
  CHECK(source->find("cube").describe() == "uint8[2, 1, 2]");
  CHECK(source->find("cube").columns() == 2);
  CHECK(!source->find("other"));
}

TEST(safetensors_without_tensors) {
  open(safetensors("{}", 0));
  open(safetensors(R"({"__metadata__":{}})", 0));
}

/// Memory of this process in KiB, counted page by page (/proc/self/statm is only roughly right).
long resident_kib() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string word;
  while (rollup >> word && word != "Rss:") {
  }
  long kib = 0;
  rollup >> kib;
  return kib;
}

TEST(safetensors_data_survives_release_and_deletion) {
  constexpr size_t kBytes = 1 << 24;
  auto file = std::make_unique<TemporaryFile>(
      safetensors("{" + tensor("t", "I8", "16777216", "0,16777216") + "}", kBytes));
  const auto source = open_safetensors({file->path()});
  file.reset();
  const TensorView view = source->find("t");
  for (int pass = 0; pass < 2; ++pass) {
    size_t wrong = 0;
    for (size_t i = 0; i < kBytes; ++i) wrong += view.as<int8_t>()[i] != static_cast<int8_t>(i);
    CHECK(wrong == 0);
    const long before = resident_kib();
    source->release(view.data, kBytes);
    // 16384 KiB were mapped. The rest is a margin, because the process may hold more memory
    // elsewhere by now.
    CHECK(before - resident_kib() >= 12000);
  }
  int elsewhere = 5;
  source->release(&elsewhere, sizeof(elsewhere));
  CHECK(elsewhere == 5);
}

TEST(safetensors_shards) {
  const TemporaryFile one(safetensors("{" + tensor("a", "I8", "4", "0,4") + "}", 4));
  const TemporaryFile two(safetensors("{" + tensor("b", "I8", "2", "0,2") + "}", 2));
  const auto source = open_safetensors({one.path(), two.path()});
  CHECK(source->find("a").size() == 4);
  CHECK(source->find("b").size() == 2);
  CHECK_THROWS_WITH(open_safetensors({one.path(), two.path(), one.path()}),
                    "tensor 'a' is also in " + one.path());
}

TEST(safetensors_identity) {
  const std::string content = safetensors("{" + tensor("a", "I8", "4", "0,4") + "}", 4);
  const TemporaryFile one(content);
  const TemporaryFile two(content);
  const auto identity = [](const std::string& path) {
    return open_safetensors({path})->identity();
  };
  CHECK(identity(one.path()) == identity(one.path()));
  CHECK(identity(one.path()) != identity(two.path()));
  const auto renamed = [&](const std::string& ours) {
    return rename_tensors(open_safetensors({one.path()}), {{ours, "a"}})->identity();
  };
  CHECK(renamed("x") == renamed("x"));
  CHECK(renamed("x") != renamed("y"));
  const std::string before = identity(one.path());
  std::ofstream(one.path(), std::ios::binary) << safetensors("{}", 0);
  CHECK(identity(one.path()) != before);
}

TEST(safetensors_truncated_while_mapped) {
  constexpr size_t kBytes = 1 << 16;
  const std::string data =
      tensor("a", "U8", "32768", "0,32768") + "," + tensor("b", "U8", "32768", "32768,65536");
  const TemporaryFile file(safetensors("{" + data + "}", kBytes));
  const TemporaryFile other(safetensors("{" + data + "}", kBytes));
  const auto source = open_safetensors({file.path()});
  const auto whole = open_safetensors({other.path()});
  const auto sum = [](const WeightSource& from, const std::string& name) {
    const TensorView view = from.find(name);
    size_t total = 0;
    // The compiler must read them also where nobody wants the sum.
    const volatile uint8_t* const bytes = view.as<const uint8_t>();
    for (int64_t i = 0; i < view.size(); ++i) total += bytes[i];
    from.release(view.data, static_cast<size_t>(view.size()));
    return total;
  };
  const size_t before = sum(*source, "a");
  CHECK(before > 0 && sum(*source, "b") > 0);
  std::filesystem::resize_file(file.path(), 32768);
  CHECK_THROWS_AS(RuntimeError, sum(*source, "b"),
                  file.path() + ": the file was truncated while it was read; it had");
  CHECK_THROWS_AS(RuntimeError, sum(*source, "a"), "truncated");  // it cannot be trusted any more
  CHECK(sum(*whole, "a") > 0 && sum(*whole, "b") > 0);            // another file is as before
}

TEST(safetensors_unreadable_files) {
  CHECK_THROWS_AS(RuntimeError, open_safetensors({"/nonexistent/x.safetensors"}),
                  "/nonexistent/x.safetensors: cannot open: No such file");
  CHECK_THROWS_AS(RuntimeError, open_safetensors({"/tmp"}), "not a regular file");
  CHECK_THROWS_AS(RuntimeError, open_safetensors({"/dev/null"}), "not a regular file");
}

TEST(safetensors_bad_length) {
  CHECK_THROWS_WITH(open(""), "found 0 bytes, expected at least 8");
  CHECK_THROWS_WITH(open("1234567"), "found 7 bytes");
  CHECK_THROWS_WITH(open(with_length(std::numeric_limits<uint64_t>::max(), "{}")),
                    "header of 18446744073709551615 bytes, expected at most 16777216");
  CHECK_THROWS_WITH(open(with_length((16 << 20) + 1, "{}")), "expected at most");
  CHECK_THROWS_WITH(open(with_length(3, "{}")), "header of 3 bytes, but only 2 follow");
  CHECK_THROWS_WITH(open(with_length(0, "")), "does not begin with '{'");
}

TEST(safetensors_header_is_not_json) {
  const auto header = [](const std::string& text) { open(safetensors(text, 0)); };
  CHECK_THROWS_WITH(header(" {}"), "does not begin with '{'");
  CHECK_THROWS_WITH(header("[]"), "does not begin with '{'");
  CHECK_THROWS_WITH(header("{"), "the header is not JSON");
  CHECK_THROWS_WITH(header("{}{}"), "the header is not JSON");
  CHECK_THROWS_WITH(header(std::string("{}\0x", 4)), "zero byte");
  CHECK_THROWS_WITH(header("{\"\xff\xfe\":1}"), "the header is not JSON");
  CHECK_THROWS_WITH(header(R"({"a":)" + std::string(1'000'000, '[')), "nested too deeply");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"a":)";
  CHECK_THROWS_WITH(header(objects), "nested too deeply");
}

TEST(safetensors_duplicate_keys) {
  const std::string one = tensor("a", "I8", "1", "0,1");
  CHECK_THROWS_WITH(open_tensors(one + "," + one, 1), "duplicate key 'a'");
  CHECK_THROWS_WITH(open_tensors(R"("a":{"dtype":"I8","dtype":"U8","shape":[1],)"
                                 R"("data_offsets":[0,1]})",
                                 1),
                    "duplicate key 'dtype'");
  CHECK_THROWS_WITH(open_tensors(R"("__metadata__":{},"__metadata__":{})", 0), "duplicate key");
  open_tensors(one + "," + tensor("b", "I8", "1", "1,2"), 2);  // equal keys in two objects
}

TEST(safetensors_malformed_entries) {
  CHECK_THROWS_WITH(open_tensors(R"("a":1)", 0), "tensor 'a' is not an object");
  CHECK_THROWS_WITH(open_tensors(R"("a":null)", 0), "tensor 'a' is not an object");
  CHECK_THROWS_WITH(open_tensors(R"("a":{"dtype":"I8","shape":[1]})", 0), "does not have exactly");
  CHECK_THROWS_WITH(open_tensors(R"("a":{"dtype":"I8","shape":[0],"data_offsets":[0,0],"x":1})", 0),
                    "does not have exactly");
  CHECK_THROWS_WITH(open_tensors(R"("a":{"dtype":7,"shape":[0],"data_offsets":[0,0]})", 0),
                    "dtype is not a string");
  CHECK_THROWS_WITH(open_tensors(R"("a":{"dtype":"I8","shape":3,"data_offsets":[0,3]})", 3),
                    "shape is not an array");
  CHECK_THROWS_WITH(open_tensors(R"("a":{"dtype":"I8","shape":[3],"data_offsets":"0,3"})", 3),
                    "data_offsets is not an array");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "3", "0"), 3), "found 1 data_offsets");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "3", "0,1,3"), 3), "found 3 data_offsets");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I9", "3", "0,3"), 3), "unknown dtype 'I9'");
  CHECK_THROWS_WITH(open_tensors(R"("__metadata__":[])", 0), "__metadata__ is not an object");
  CHECK_THROWS_WITH(open_tensors(R"("__metadata__":{"n":1})", 0),
                    "__metadata__ entry 'n' is not a string");
}

TEST(safetensors_bad_shapes) {
  const std::string range = "expected integers from 0 to 2^63 - 1";
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "-3", "0,3"), 3), range);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "3.0", "0,3"), 3), range);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "\\\"3\\\"", "0,3"), 3), "not JSON");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "true", "0,3"), 3), range);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "9223372036854775808", "0,3"), 3), range);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "1e300", "0,3"), 3), range);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "99999999999999999999999", "0,3"), 3), range);
  // 2^32 * 2^32 bytes wrap to 0.
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "4294967296,4294967296", "0,0"), 0),
                    "product of its shape overflows");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "F32", "4611686018427387904", "0,0"), 0),
                    "product of its shape overflows");
  CHECK_THROWS_WITH(
      open_tensors(tensor("a", "F32", "0,4611686018427387904,4611686018427387904", "0,0"), 0),
      "product of its shape overflows");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "F32", "3", "0,8"), 8),
                    "data_offsets hold 8 bytes, but dtype and shape need 12");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "F16", "3", "0,12"), 12), "need 6");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "F4", "3", "0,2"), 2), "whole byte");
}

TEST(safetensors_bad_offsets) {
  const std::string outside = "do not lie within the 4 bytes of data";
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "5", "0,5"), 4), outside);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "2", "4,2"), 4), outside);
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "2", "-2,0"), 4), "data_offsets holds -2");
  CHECK_THROWS_WITH(
      open_tensors(tensor("a", "I8", "8", "9223372036854775800,9223372036854775807"), 4), outside);
  CHECK_THROWS_WITH(
      open_tensors(tensor("a", "I8", "3", "0,3") + "," + tensor("b", "I8", "2", "2,4"), 4),
      "tensor 'b' overlaps the tensor before it by 1 bytes");
  CHECK_THROWS_WITH(
      open_tensors(tensor("a", "I8", "4", "0,4") + "," + tensor("b", "I8", "4", "0,4"), 4),
      "overlaps the tensor before it by 4 bytes");
  CHECK_THROWS_WITH(
      open_tensors(tensor("a", "I8", "1", "0,1") + "," + tensor("b", "I8", "2", "2,4"), 4),
      "gap of 1 bytes before tensor 'b'");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "2", "2,4"), 4), "gap of 2 bytes");
  CHECK_THROWS_WITH(open_tensors(tensor("a", "I8", "2", "0,2"), 4),
                    "2 bytes at the end belong to no tensor");
  CHECK_THROWS_WITH(open_tensors("", 4), "4 bytes at the end belong to no tensor");
  // An empty tensor lies inside the data of another one.
  CHECK_THROWS_WITH(
      open_tensors(tensor("a", "I8", "4", "0,4") + "," + tensor("b", "I8", "0", "2,2"), 4),
      "tensor 'b' overlaps");
}

TEST(safetensors_every_truncation_is_refused) {
  const std::string file = safetensors(
      "{" + tensor("a", "F32", "1,1", "0,4") + "," + tensor("b", "I8", "2", "4,6") + "}", 6);
  CHECK(parse_safetensors_header(file, "whole").size() == 2);
  for (size_t length = 0; length < file.size(); ++length) {
    CHECK_THROWS_WITH(parse_safetensors_header(std::span(file.data(), length), "part"),
                      "part: not a valid safetensors file");
  }
}

TEST(safetensors_any_damaged_byte_is_survived) {
  const std::string file = safetensors(
      "{" + tensor("a", "F32", "1,1", "0,4") + "," + tensor("b", "I8", "2", "4,6") + "}", 6);
  using namespace std::string_literals;
  const std::string values = "\0\1 \"',-.019:[]a{}\\\x7f\x80\xff"s;
  for (size_t i = 0; i < file.size(); ++i) {
    for (const char value : values) {
      std::string damaged = file;
      damaged[i] = value;
      try {
        for (const SafetensorsEntry& entry : parse_safetensors_header(damaged, "damaged")) {
          CHECK(entry.begin <= entry.end && entry.end <= damaged.size());
        }
      } catch (const InvalidArgument&) {
      }
    }
  }
}

TEST(safetensors_tensors_we_cannot_serve) {
  const TemporaryFile file(safetensors("{" + tensor("double", "F64", "1", "0,8") + "," +
                                           tensor("deep", "I8", "1,1,1,1,1", "8,9") + "}",
                                       9));
  const auto source = open_safetensors({file.path()});
  CHECK(source->names().size() == 2);
  CHECK_THROWS_WITH(source->find("double"), "tensor 'double' has dtype F64");
  CHECK_THROWS_WITH(source->find("deep"), "5 dimensions");
}

TEST(safetensors_hostile_names_are_tamed_in_messages) {
  CHECK_THROWS_WITH(open_tensors(R"("\u001b[2J\n":1)", 0), "tensor '?[2J?' is not an object");
  const std::string name(500, 'x');
  CHECK_THROWS_WITH(open_tensors("\"" + name + "\":1", 0),
                    std::string(120, 'x') + "...' is not an object");
}

}  // namespace
}  // namespace packhorse
