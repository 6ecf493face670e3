// Libraries with threads of their own, which are to compute in the threads that call them. x86/ and
// arm/ have what their libraries need.
#pragma once

namespace packhorse::cpu {

/// Makes libraries run single-threaded in the calling thread. Worker threads call this.
void use_one_thread();

/// Makes libraries run single-threaded within a scope, for threads that belong to the
/// caller of Packhorse.
class OneThreadScope {
 public:
  OneThreadScope();
  ~OneThreadScope();
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  int before_ = 1;
};

}  // namespace packhorse::cpu
