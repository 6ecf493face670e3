// Every row is assigned exactly once, in parts that fit.
#include "cpu/partition.h"
#include "test.h"

namespace packhorse::cpu {
namespace {

TEST(cpu_partition_deals_every_row_once) {
  for (bool any_rows : {false, true}) {
    for (int threads = 1; threads <= 9; ++threads) {
      for (int64_t most : {kBlockRows, 2 * kBlockRows, 4 * kBlockRows}) {
        for (int64_t rows = 0; rows <= 700; ++rows) {
          const Partition partition(rows, most, any_rows, threads);
          int64_t next = 0;
          for (int64_t part = 0; part < partition.parts(); ++part) {
            CHECK(partition.first_row(part) == next);
            next = partition.first_row(part + 1);
            CHECK(next >= partition.first_row(part) && next - partition.first_row(part) <= most);
          }
          CHECK(partition.split() <= Partition::split_capacity(rows, threads));
          for (int64_t block = 0; block < partition.split(); ++block) {
            CHECK(partition.first_row_of_split(block) == next);
            next = partition.first_row_of_split(block + 1);
            const int64_t size = next - partition.first_row_of_split(block);
            CHECK(size > 0 && size <= kBlockRows);
          }
          CHECK(next == rows);
        }
      }
    }
  }
}

}  // namespace
}  // namespace packhorse::cpu
