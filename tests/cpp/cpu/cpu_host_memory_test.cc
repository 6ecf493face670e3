// Free memory as machine and cgroups leave it, read from a folder that stands for "/".
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "cpu/memory/cgroup_memory.h"
#include "cpu/memory/host_memory.h"
#include "test.h"

namespace packhorse::cpu {
namespace {

namespace fs = std::filesystem;

constexpr size_t kGiB = size_t{1} << 30;

class FakeRoot {
 public:
  FakeRoot() : path_(fs::temp_directory_path() / ("packhorse-root-" + std::to_string(getpid()))) {
    write("proc/meminfo", "MemTotal: 33554432 kB\nMemFree: 1048576 kB\nMemAvailable: 8388608 kB\n");
  }
  ~FakeRoot() { fs::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << text;
  }
  void write(const std::string& name, size_t value) const {
    write(name, std::to_string(value) + "\n");
  }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

TEST(cpu_free_memory_without_cgroups) {
  const FakeRoot root;
  CHECK(free_cgroup_memory(root.path()) == SIZE_MAX);
  CHECK(free_host_memory(root.path()) == 8 * kGiB);
}

TEST(cpu_free_memory_in_a_container_of_version_2) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/\n");
  root.write("sys/fs/cgroup/memory.current", kGiB);
  root.write("sys/fs/cgroup/memory.max", "max\n");
  CHECK(free_host_memory(root.path()) == 8 * kGiB);
  root.write("sys/fs/cgroup/memory.max", 2 * kGiB);
  CHECK(free_host_memory(root.path()) == kGiB);
  root.write("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 536870912\nactive_file 7\n");
  CHECK(free_host_memory(root.path()) == kGiB + kGiB / 2);
  root.write("sys/fs/cgroup/memory.high", kGiB);
  CHECK(free_host_memory(root.path()) == kGiB / 2);
  root.write("sys/fs/cgroup/memory.max", kGiB / 4);  // lowered below what is used
  CHECK(free_host_memory(root.path()) == 0);
}

TEST(cpu_free_memory_is_that_of_the_tightest_group_above) {
  const FakeRoot root;
  root.write("proc/self/cgroup", "0::/user.slice/one.service/leaf\n");
  const std::string top = "sys/fs/cgroup/user.slice/";
  root.write(top + "memory.max", 4 * kGiB);
  root.write(top + "memory.current", 3 * kGiB);
  root.write(top + "one.service/memory.max", 3 * kGiB);
  root.write(top + "one.service/memory.current", kGiB);
  root.write(top + "one.service/leaf/memory.max", "max\n");
  root.write(top + "one.service/leaf/memory.current", kGiB);
  CHECK(free_host_memory(root.path()) == kGiB);
}

TEST(cpu_free_memory_in_a_container_of_version_1) {
  const FakeRoot root;
  root.write("proc/self/cgroup",
             "9:name=systemd:/docker/abc\n4:memory,hugetlb:/docker/abc\n2:cpuacct:/docker/abc\n");
  // The container sees its own group as the root of the mount.
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 2 * kGiB);
  root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", kGiB);
  root.write("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 1024\n");
  CHECK(free_host_memory(root.path()) == kGiB + 1024);
  // The whole hierarchy is there.
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", 9223372036854771712U);
  root.write("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", kGiB);
  root.write("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", kGiB / 4);
  CHECK(free_host_memory(root.path()) == kGiB / 4 * 3);
  root.write("proc/self/cgroup", "4:memory:/../elsewhere\n");
  CHECK(free_host_memory(root.path()) == 8 * kGiB);
}

TEST(cpu_memory_that_is_allocated_and_not_written_is_not_free) {
  const FakeRoot root;
  const auto before = free_host_memory(root.path());
  const auto memory = allocate_host_memory(6 * kGiB);
  const size_t free = free_host_memory(root.path());
  // Memory that the process has written otherwise hides a part of it.
  CHECK(free < before - 5 * kGiB);
}

}  // namespace
}  // namespace packhorse::cpu
