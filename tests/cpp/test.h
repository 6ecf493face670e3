// A test harness in one header: TEST(name) { CHECK(x == y); CHECK_THROWS_WITH(f(), "text"); }
//
// A failed check is reported and the test goes on; an unexpected exception ends the test. The
// program runs every test, or those whose name contains its first argument.
#pragma once

#include <exception>
#include <string>
#include <vector>

namespace packhorse::test {

struct Case {
  const char* name;
  void (*body)();
};

std::vector<Case>& cases();
bool add(const char* name, void (*body)());
int& failures();

void fail(const char* file, int line, const std::string& what);
/// Takes the message as a literal, which means less code at each check.
void fail(const char* file, int line, const char* what);

/// Something to call, which outlives this.
class Body {
 public:
  template <class F>
  Body(const F& body)
      : body_(&body), call_([](const void* body) { (*static_cast<const F*>(body))(); }) {}
  void operator()() const { call_(body_); }

 private:
  const void* body_;
  void (*call_)(const void*);
};

/// Reports a failure unless `body` throws an `Expected` whose message contains `part`.
template <class Expected>
void expect_throw(const char* file, int line, const Body& body, const std::string& part) {
  try {
    body();
  } catch (const Expected& error) {
    const std::string message = error.what();
    if (message.find(part) == message.npos) {
      fail(file, line, "found message \"" + message + "\", expected \"" + part + "\" in it");
    }
    return;
  } catch (const std::exception& error) {
    return fail(file, line, "another exception: " + std::string(error.what()));
  }
  fail(file, line, "no exception, expected \"" + part + "\"");
}

}  // namespace packhorse::test

#define TEST(name)                                                           \
  static void test_##name();                                                 \
  static const bool added_##name = packhorse::test::add(#name, test_##name); \
  static void test_##name()

#define CHECK(condition) \
  if (!(condition)) packhorse::test::fail(__FILE__, __LINE__, "CHECK(" #condition ")")

#define CHECK_THROWS_AS(Exception, expression, part) \
  packhorse::test::expect_throw<Exception>(          \
      __FILE__, __LINE__, [&] { static_cast<void>(expression); }, part)

/// Checks that InvalidArgument is thrown, the usual case.
#define CHECK_THROWS_WITH(expression, part) \
  CHECK_THROWS_AS(packhorse::InvalidArgument, expression, part)
