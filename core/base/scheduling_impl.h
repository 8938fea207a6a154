/* How a thread shares the processor with others. Each call is best effort: nothing depends on the kernel granting
 * it. */
#ifndef PYBROKER_SCHEDULING_IMPL_H
#define PYBROKER_SCHEDULING_IMPL_H
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static void schedule(int policy, int nice, uint64_t turn_ns) {
  struct {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
  } asked;
  memset(&asked, 0, sizeof asked);
  asked.size = sizeof asked;
  asked.policy = policy;
  asked.nice = nice;
  asked.runtime = turn_ns; /* 0: the default time slice */
  syscall(SYS_sched_setattr, 0, &asked, 0);
}

/* Undo what the thread inherited from its creator. `nice` above 0: it yields the processor to others who need it. */
static void schedule_as_others(int nice) {
  int now = getpriority(PRIO_PROCESS, 0), policy = sched_getscheduler(0);
  if (policy == SCHED_OTHER || policy == SCHED_BATCH) schedule(SCHED_OTHER, nice > now ? nice : now, 0);
}

/* For a thread with little work at a time, which is urgent: it runs before threads with much work (Linux 6.12). */
static void ask_for_short_turns(void) {
  if (sched_getscheduler(0) == SCHED_OTHER) schedule(SCHED_OTHER, getpriority(PRIO_PROCESS, 0), 100000);
}

/* For a thread that never preempts another one. */
static void wait_for_others(void) {
  if (sched_getscheduler(0) == SCHED_OTHER) schedule(SCHED_BATCH, getpriority(PRIO_PROCESS, 0), 0);
}
#endif
