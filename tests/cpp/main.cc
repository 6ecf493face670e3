#include <exception>
#include <iostream>
#include <string>

#include "test.h"

int main(int argc, char** argv) {
  using namespace packhorse::test;
  const std::string filter = argc > 1 ? argv[1] : "";
  int run = 0;
  for (const Case& test : cases()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
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
