#include "core/interrupt.h"

#include <atomic>

#include "packhorse/error.h"
#include "packhorse/interrupt.h"

namespace packhorse {
namespace {

std::atomic<InterruptQuery> current_query = nullptr;

}  // namespace

void set_interrupt_query(InterruptQuery query) { current_query = query; }

void check_interrupt() {
  const InterruptQuery query = current_query.load(std::memory_order_acquire);
  if (query != nullptr && query()) throw Interrupted("the run was ended before it was done");
}

}  // namespace packhorse
