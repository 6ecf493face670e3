// For packhorse/interrupt.h.
#pragma once

namespace packhorse {

/// Throws Interrupted if the query that is set says so.
void check_interrupt();

}  // namespace packhorse
