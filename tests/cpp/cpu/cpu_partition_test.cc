// Every row is assigned exactly once, in parts that fit; every place of the streams is taken once,
// and a stream's places one after another.
#include <vector>

#include "cpu/gemm/partition.h"
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
          CHECK(partition.split() <= Partition::split_capacity(rows, any_rows, threads));
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

TEST(cpu_partition_takes_the_places_of_streams_in_order) {
  for (int64_t streams = 1; streams <= 5; ++streams) {
    for (int64_t count = 0; count <= 40; ++count) {
      std::vector<int64_t> next(static_cast<size_t>(streams), -1);
      std::vector<int> taken(static_cast<size_t>(count), 0);
      for (int64_t task = 0; task < count; ++task) {
        const int64_t place = place_in_stream(task, count, streams);
        int64_t& expected = next[static_cast<size_t>(task % streams)];
        CHECK(place >= 0 && place < count && (expected == -1 || place == expected));
        expected = place + 1;
        ++taken.at(static_cast<size_t>(place));
      }
      for (int times : taken) CHECK(times == 1);
    }
  }
}

}  // namespace
}  // namespace packhorse::cpu
