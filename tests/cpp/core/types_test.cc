#include "packhorse/types.h"

#include "packhorse/error.h"
#include "test.h"

namespace packhorse {
namespace {

TEST(dtype_names_round_trip) {
  for (const DType dtype :
       {DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt32, DType::kInt64,
        DType::kInt8, DType::kUInt8, DType::kBool, DType::kFloat8}) {
    CHECK(parse_dtype(name_of(dtype)) == dtype);
  }
  CHECK(size_of(DType::kFloat32) == 4);
  CHECK(size_of(DType::kBFloat16) == 2);
  CHECK(size_of(DType::kInt64) == 8);
  CHECK(size_of(DType::kBool) == 1);
  CHECK_THROWS_WITH(parse_dtype("float17"), "unknown dtype 'float17'; known: float32, float16");
}

TEST(numbers_that_are_no_dtype) {
  CHECK_THROWS_WITH(size_of(static_cast<DType>(200)),
                    "a dtype has the number 200, expected 0 to 8");
  CHECK_THROWS_WITH(name_of(static_cast<DType>(9)), "a dtype has the number 9");
}

TEST(device_names) {
  CHECK(parse_device("cpu") == Device{});
  CHECK((parse_device("cuda") == Device{DeviceType::kCuda, 0}));
  CHECK((parse_device("cuda:12") == Device{DeviceType::kCuda, 12}));
  CHECK(name_of(parse_device("cuda:1")) == "cuda:1");
  CHECK(name_of(Device{}) == "cpu");
  for (const char* bad : {"", "CPU", "cpu:0", "cuda:", "cuda:-1", "cuda:+1", "cuda:1x",
                          "cuda:99999999", "cuda: 1", "gpu"}) {
    CHECK_THROWS_WITH(parse_device(bad), "expected 'cpu', 'cuda' or 'cuda:N'");
  }
}

TEST(tensor_views) {
  float data[12] = {};
  const TensorView matrix(data, DType::kFloat32, 3, 4);
  CHECK(matrix.rows() == 3);
  CHECK(matrix.columns() == 4);
  CHECK(matrix.size() == 12);
  CHECK(matrix.describe() == "float32[3, 4]");
  CHECK(matrix.first_rows(2).describe() == "float32[2, 4]");
  CHECK(matrix.first_rows(0).size() == 0);
  CHECK_THROWS_WITH(matrix.first_rows(4), "first 4 rows of float32[3, 4]");
  CHECK_THROWS_WITH(matrix.first_rows(-1), "do not exist");

  const TensorView slice = matrix.column_slice(1, 3);
  CHECK(slice.as<float>() == data + 1);
  CHECK(slice.columns() == 3);
  CHECK(slice.row_stride == 4);
  CHECK(matrix.column_slice(4, 0).columns() == 0);
  CHECK_THROWS_WITH(matrix.column_slice(2, 3), "columns [2, 2 + 3) of float32[3, 4]");
  CHECK_THROWS_WITH(matrix.column_slice(-1, 1), "do not exist");

  const TensorView vector(data, DType::kFloat32, 12);
  CHECK(vector.rows() == 12);
  CHECK(vector.columns() == 1);
  CHECK_THROWS_WITH(vector.column_slice(0, 1), "do not exist");
  CHECK(!TensorView());
  CHECK(TensorView().size() == 0);
}

}  // namespace
}  // namespace packhorse
