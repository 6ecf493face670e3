#include "cpu/memory/cgroup_memory.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

namespace packhorse::cpu {
namespace {

namespace fs = std::filesystem;

/// The files of one version of cgroups.
struct Version {
  const char* mount;
  const char* usage;
  std::vector<const char*> limits;
  const char* reclaimable;  // a line of memory.stat, of the group and those below it
};

const Version kFirst = {"/sys/fs/cgroup/memory",
                        "memory.usage_in_bytes",
                        {"memory.limit_in_bytes"},
                        "total_inactive_file"};
const Version kSecond = {
    "/sys/fs/cgroup", "memory.current", {"memory.max", "memory.high"}, "inactive_file"};

// The number in a file; none if there is no such file, or it says "max".
std::optional<uint64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

uint64_t read_stat(const fs::path& path, const std::string& wanted) {
  std::ifstream file(path);
  std::string name;
  uint64_t value = 0;
  while (file >> name >> value) {
    if (name == wanted) return value;
  }
  return 0;
}

// Bytes until the limit of one group; SIZE_MAX without a limit.
size_t free_in(const fs::path& group, const Version& version) {
  const std::optional<uint64_t> usage = read_number(group / version.usage);
  if (!usage) return SIZE_MAX;
  uint64_t limit = UINT64_MAX;
  for (const char* name : version.limits) {
    limit = std::min(limit, read_number(group / name).value_or(UINT64_MAX));
  }
  if (limit == UINT64_MAX) return SIZE_MAX;
  const uint64_t held =
      *usage - std::min(*usage, read_stat(group / "memory.stat", version.reclaimable));
  return limit - std::min(limit, held);
}

// A container often sees its own group as the root of the mount, though /proc names the path that
// the host has for it. So groups of the path that are not there are left out.
size_t free_along(const std::string& root, const std::string& path, const Version& version) {
  fs::path group = root + version.mount;
  size_t free = free_in(group, version);
  for (const fs::path& name : fs::path(path).relative_path()) {
    if (name == "..") break;  // a group outside of what this process sees
    group /= name;
    free = std::min(free, free_in(group, version));
  }
  return free;
}

}  // namespace

size_t free_cgroup_memory(const std::string& root) {
  std::ifstream file(root + "/proc/self/cgroup");
  size_t free = SIZE_MAX;
  std::string line;
  while (std::getline(file, line)) {  // ID:CONTROLLERS:PATH, the controllers empty in version 2
    std::istringstream fields(line);
    std::string id, controllers, path;
    std::getline(fields, id, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (controllers.empty()) {
      free = std::min(free, free_along(root, path, kSecond));
    } else if (("," + controllers + ",").find(",memory,") != std::string::npos) {
      free = std::min(free, free_along(root, path, kFirst));
    }
  }
  return free;
}

}  // namespace packhorse::cpu
