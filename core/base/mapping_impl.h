/* Maps whose pages may be gone: a file that was cut, or a disk that cannot read, raises SIGBUS at whoever touches such
 * a page. The handler here puts a page of zeros in its place and notes that the map has lost one; the reader goes on, and
 * asks before it believes what it read. (Wayland's compositors guard the memory of their clients so.)
 *
 * A fault in no map of ours is left to whoever had the signal before. If that one does not help, the fault comes again,
 * and the system's own action ends the process as it would have without us. */
#ifndef PYBROKER_MAPPING_IMPL_H
#define PYBROKER_MAPPING_IMPL_H
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define GUARDED_MAX 16384 /* a quarter of what vm.max_map_count allows by default */

typedef struct {
  uintptr_t base; /* 0: free; 1: taken, not filled in yet */
  size_t bytes;
  int32_t *lost;
} guarded_t;

static guarded_t guarded[GUARDED_MAX];
static int guarded_high;  /* no slot from here on was ever used */
static int guarded_next;  /* where to look first */
static int guarded_count;
static size_t page_bytes;
static struct sigaction before;  /* of whoever had the signal before us */
static uintptr_t passed_on;      /* the last fault that was left to them */
static long passing;             /* the thread that they have it in */
static pthread_mutex_t guarding = PTHREAD_MUTEX_INITIALIZER;

static int mend(uintptr_t at) {
  int i, high = __atomic_load_n(&guarded_high, __ATOMIC_ACQUIRE);
  for (i = 0; i < high; i++) {
    uintptr_t base = __atomic_load_n(&guarded[i].base, __ATOMIC_ACQUIRE);
    if (base <= 1 || at < base || at - base >= __atomic_load_n(&guarded[i].bytes, __ATOMIC_RELAXED)) continue;
    void *page = (void *)(at & ~(uintptr_t)(page_bytes - 1));
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    /* Not by the library's name for it, which a sanitizer has its own for. */
    if ((void *)syscall(SYS_mmap, page, page_bytes, PROT_READ, flags, -1, 0) != page) return 0;
    __atomic_store_n(__atomic_load_n(&guarded[i].lost, __ATOMIC_RELAXED), 1, __ATOMIC_RELEASE);
    return 1;
  }
  return 0;
}

/* Leave it to whoever had the signal before, or at the second time to the system. */
static void pass_on(int number, siginfo_t *info, void *context) {
  struct sigaction plain;
  int kernels = info->si_code > 0;
  long thread = syscall(SYS_gettid);
  uintptr_t at = (uintptr_t)info->si_addr;
  int again = kernels ? __atomic_exchange_n(&passed_on, at, __ATOMIC_ACQ_REL) == at
                      : __atomic_load_n(&passing, __ATOMIC_ACQUIRE) == thread; /* sent by who handles it */
  int has = (before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
  if (again || !has) {
    memset(&plain, 0, sizeof plain);
    plain.sa_handler = SIG_DFL;
    sigaction(number, &plain, NULL);
    if (!kernels) raise(number); /* one that was sent does not come again by itself */
    return;
  }
  __atomic_store_n(&passing, thread, __ATOMIC_RELEASE);
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else {
    before.sa_handler(number);
  }
  __atomic_store_n(&passing, 0, __ATOMIC_RELEASE);
}

static void on_sigbus(int number, siginfo_t *info, void *context) {
  int saved = errno;
  if (info->si_code <= 0 || !mend((uintptr_t)info->si_addr)) pass_on(number, info, context);
  errno = saved;
}

/* See that ours is the handler that is asked first: another may have come since. */
static int guard(void) {
  struct sigaction now, ours;
  if (sigaction(SIGBUS, NULL, &now) != 0) return -errno;
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_sigbus) return 0;
  memset(&ours, 0, sizeof ours);
  ours.sa_sigaction = on_sigbus;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  pthread_mutex_lock(&guarding);
  int status = sigaction(SIGBUS, NULL, &now) != 0 ? -errno : 0;
  if (status == 0 && !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_sigbus)) {
    before = now;
    status = sigaction(SIGBUS, &ours, NULL) != 0 ? -errno : 0;
  }
  pthread_mutex_unlock(&guarding);
  return status;
}

/* The slot of a map that is guarded from now on; -ENOMEM where there are too many. */
static int guard_add(void *base, size_t bytes, int32_t *lost) {
  int i, start = __atomic_load_n(&guarded_next, __ATOMIC_RELAXED);
  int status = guard();
  if (status < 0) return status;
  if (__atomic_add_fetch(&guarded_count, 1, __ATOMIC_ACQ_REL) > GUARDED_MAX) {
    __atomic_sub_fetch(&guarded_count, 1, __ATOMIC_ACQ_REL);
    return -ENOMEM;
  }
  for (i = 0; i < GUARDED_MAX; i++) {
    int slot = (start + i) % GUARDED_MAX, high;
    uintptr_t none = 0;
    if (!__atomic_compare_exchange_n(&guarded[slot].base, &none, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) continue;
    __atomic_store_n(&guarded[slot].bytes, bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&guarded[slot].lost, lost, __ATOMIC_RELAXED);
    __atomic_store_n(&guarded[slot].base, (uintptr_t)base, __ATOMIC_RELEASE);
    while ((high = __atomic_load_n(&guarded_high, __ATOMIC_RELAXED)) <= slot &&
           !__atomic_compare_exchange_n(&guarded_high, &high, slot + 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    return slot;
  }
  __atomic_sub_fetch(&guarded_count, 1, __ATOMIC_ACQ_REL);
  return -ENOMEM; /* slots that others gave back behind us */
}

static void guard_remove(int slot) {
  __atomic_store_n(&guarded[slot].base, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&guarded_next, slot, __ATOMIC_RELAXED);
  __atomic_sub_fetch(&guarded_count, 1, __ATOMIC_ACQ_REL);
}
#endif
