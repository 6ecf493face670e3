/* What code that was compiled with the headers of a newer glibc asks for, and glibc 2.28 lacks. These are linked into
 * the libraries of a wheel, and seen by nobody else. */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#define HIDDEN __attribute__((visibility("hidden")))

/* 0: there may be several threads. With another value libstdc++ would count references without atomic operations. */
HIDDEN char __libc_single_threaded = 0;

/* The time on the clock of calendars that is as far away as `until` is on `clock`. */
static struct timespec on_realtime(clockid_t clock, const struct timespec *until) {
  struct timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  real.tv_sec += until->tv_sec - now.tv_sec;
  real.tv_nsec += until->tv_nsec - now.tv_nsec;
  if (real.tv_nsec < 0) {
    real.tv_sec -= 1;
    real.tv_nsec += 1000000000;
  } else if (real.tv_nsec >= 1000000000) {
    real.tv_sec += 1;
    real.tv_nsec -= 1000000000;
  }
  if (real.tv_sec < 0) real.tv_sec = real.tv_nsec = 0;
  return real;
}

static int has_passed(clockid_t clock, const struct timespec *until) {
  struct timespec now;
  clock_gettime(clock, &now);
  return now.tv_sec > until->tv_sec || (now.tv_sec == until->tv_sec && now.tv_nsec >= until->tv_nsec);
}

/* May wake up early, as any wait for a condition, if somebody sets the calendar. */
HIDDEN int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock,
                                  const struct timespec *until) {
  const struct timespec real = on_realtime(clock, until);
  const int result = pthread_cond_timedwait(condition, mutex, &real);
  return result == ETIMEDOUT && !has_passed(clock, until) ? 0 : result;
}

HIDDEN int pthread_mutex_clocklock(pthread_mutex_t *mutex, clockid_t clock, const struct timespec *until) {
  int result;
  do {
    const struct timespec real = on_realtime(clock, until);
    result = pthread_mutex_timedlock(mutex, &real);
  } while (result == ETIMEDOUT && !has_passed(clock, until));
  return result;
}
