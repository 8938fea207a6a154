/* A wall clock that is wrong by as many seconds as a file says (WALLCLOCK_OFFSET), which may change at any time. Preloaded
 * into a process; the clocks that only ever go on are right. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const char *said;

__attribute__((constructor)) static void begin(void) { said = getenv("WALLCLOCK_OFFSET"); }

static long offset_s(void) {
  char text[32] = "";
  int fd = said ? (int)syscall(SYS_openat, AT_FDCWD, said, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return 0;
  if (syscall(SYS_read, fd, text, sizeof text - 1) < 0) text[0] = 0;
  syscall(SYS_close, fd);
  return atol(text);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int status = (int)syscall(SYS_clock_gettime, clock, now);
  if (!status && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += offset_s();
  return status;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
  struct timespec precise;
  int status = clock_gettime(CLOCK_REALTIME, &precise);
  now->tv_sec = precise.tv_sec;
  now->tv_usec = precise.tv_nsec / 1000;
  return (void)zone, status;
}

time_t time(time_t *to) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (to) *to = now.tv_sec;
  return now.tv_sec;
}
