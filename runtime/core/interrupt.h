// The side of packhorse/interrupt.h that a run uses.
#pragma once

namespace packhorse {

/// Throws Interrupted if a query is set and returns true.
void check_interrupt();

}  // namespace packhorse
