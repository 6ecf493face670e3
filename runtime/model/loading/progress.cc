#include "model/loading/progress.h"

#include <algorithm>
#include <atomic>

#include "packhorse/load_progress.h"

namespace packhorse {
namespace {

std::atomic<size_t> total_bytes = 0;
std::atomic<size_t> done_bytes = 0;

}  // namespace

LoadProgress load_progress() {
  const size_t total = total_bytes;
  return {std::min<size_t>(done_bytes, total), total};
}

ProgressScope::ProgressScope(size_t total) {
  done_bytes = 0;
  total_bytes = total;
}

ProgressScope::~ProgressScope() { total_bytes = 0; }

void note_loaded(size_t bytes) { done_bytes += bytes; }

}  // namespace packhorse
