#include "forked.h"

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "test.h"

namespace packhorse::test {
namespace {

// True if all threads but this one wait for something.
bool others_wait() {
  const std::string self = std::to_string(gettid());
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string line;
    std::getline(std::ifstream(task.path() / "stat"), line);
    const size_t name_end = line.rfind(')');
    if (name_end == line.npos || task.path().filename() == self) continue;
    if (line.compare(name_end, 3, ") S") != 0) return false;
  }
  return true;
}

}  // namespace

void check_forked(const std::function<int()>& body) {
  for (int i = 0; i < 10000 && !others_wait(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = -1;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  fail(__FILE__, __LINE__,
       WIFEXITED(status) ? "a fork returned " + std::to_string(WEXITSTATUS(status))
                         : "signal " + std::to_string(WTERMSIG(status)) + " ended a fork");
}

}  // namespace packhorse::test
