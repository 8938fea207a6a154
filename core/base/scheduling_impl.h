/* How a thread shares the processor with others. All of it is a wish: where the kernel does not grant it, nothing else
 * depends on it. */
#ifndef PYBROKER_SCHEDULING_IMPL_H
#define PYBROKER_SCHEDULING_IMPL_H
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Threads inherit from who made them. `nice` above 0: it leaves the processor to others who need it. */
static void schedule_as_others(int nice) {
  struct sched_param p = {0};
  sched_setscheduler(0, SCHED_OTHER, &p);
  if (nice > 0) setpriority(PRIO_PROCESS, 0, nice); /* of this thread alone */
}

/* It has little to do at a time, and that at once: it is let in before those who have much (Linux 6.12). */
static void ask_for_short_turns(void) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } asked;
  memset(&asked, 0, sizeof asked);
  asked.size = sizeof asked;
  asked.policy = SCHED_OTHER;
  asked.nice = getpriority(PRIO_PROCESS, 0);
  asked.runtime = 100000; /* ns */
  syscall(SYS_sched_setattr, 0, &asked, 0);
}
#endif
