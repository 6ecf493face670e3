#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "test.h"

namespace packhorse::test {

std::vector<Case>& cases() {
  static std::vector<Case> cases;
  return cases;
}

bool add(const char* name, void (*body)()) {
  cases().push_back({name, body});
  return true;
}

int& failures() {
  static int failures = 0;
  return failures;
}

void fail(const char* file, int line, const std::string& what) { fail(file, line, what.c_str()); }

void fail(const char* file, int line, const char* what) {
  ++failures();
  std::cerr << file << ":" << line << ": " << what << "\n";
}

}  // namespace packhorse::test

// packhorse_tests [PART [LEFT_OUT ...]]: tests whose names contain PART, without those with one of
// LEFT_OUT.
int main(int argc, char** argv) {
  using namespace packhorse::test;
  const std::string filter = argc > 1 ? argv[1] : "";
  const std::vector<std::string> left_out(argv + std::min(argc, 2), argv + argc);
  int run = 0;
  for (const Case& test : cases()) {
    const std::string name = test.name;
    const auto in_name = [&](const std::string& part) { return name.find(part) != name.npos; };
    if (!in_name(filter) || std::ranges::any_of(left_out, in_name)) continue;
    const int before = failures();
    try {
      test.body();
    } catch (const std::exception& error) {
      fail(test.name, 0, std::string("unexpected exception: ") + error.what());
    }
    std::cout << (failures() == before ? "ok   " : "FAIL ") << test.name << std::endl;
    ++run;
  }
  std::cout << run << " tests, " << failures() << " failed checks\n";
  return run > 0 && failures() == 0 ? 0 : 1;
}
