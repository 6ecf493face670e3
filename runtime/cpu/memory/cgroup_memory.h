// The memory that the control groups (cgroups) of this process leave it, as in a container.
#pragma once

#include <cstddef>
#include <string>

namespace packhorse::cpu {

/// Bytes until the nearest limit of the process's memory cgroup or of one above it, of version 1
/// and 2; SIZE_MAX if none has a limit. Cached files that nobody uses count as free, since the
/// kernel drops them first. `root`: a folder that stands for "/", for tests.
size_t free_cgroup_memory(const std::string& root = "");

}  // namespace packhorse::cpu
