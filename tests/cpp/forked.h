// A part of a test that runs in a fork of the process.
#pragma once

#include <functional>

namespace packhorse::test {

/// Runs `body` in a fork, which has none of the other threads; fails the test unless it returns 0
/// within a minute. Forks when the other threads wait: one that allocates just then would leave a
/// lock of AddressSanitizer's allocator held in the fork, where nobody lets it go.
void check_forked(const std::function<int()>& body);

}  // namespace packhorse::test
