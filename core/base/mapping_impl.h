/* Maps whose pages may be gone: a file that was cut, or a disk that cannot read, raises SIGBUS at whoever touches such
 * a page. The handler here puts a page of zeros in its place and notes that the map has lost one; the reader goes on, and
 * asks before it believes what it read. (Wayland's compositors guard the memory of their clients so.)
 *
 * A fault in no map of ours is left to whoever had the signal before. */
#ifndef PYBROKER_MAPPING_IMPL_H
#define PYBROKER_MAPPING_IMPL_H
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000 /* of Linux 4.17; an older one takes it for a hint */
#endif
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
static uintptr_t passing_frame;  /* where on its stack a thread is in their handler, */
static long passing_thread;      /* and which */
static pthread_mutex_t guarding = PTHREAD_MUTEX_INITIALIZER;

/* Not by the library's name for it, which a sanitizer has its own for. */
static int put_zeros(void *at, size_t n, int how) {
  return (void *)syscall(SYS_mmap, at, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0) == at;
}

/* Where no more maps are allowed one has to go first. */
static int put_zeros_instead(void *at, size_t n) {
  return syscall(SYS_munmap, at, n) == 0 && put_zeros(at, n, MAP_FIXED_NOREPLACE);
}

static int mend(uintptr_t at) {
  int i, high = __atomic_load_n(&guarded_high, __ATOMIC_ACQUIRE);
  for (i = 0; i < high; i++) {
    uintptr_t base = __atomic_load_n(&guarded[i].base, __ATOMIC_ACQUIRE);
    size_t bytes = __atomic_load_n(&guarded[i].bytes, __ATOMIC_RELAXED);
    if (base <= 1 || at < base || at - base >= bytes) continue;
    /* A page within splits the map in three; all of it is replaced where so many are not allowed. */
    if (!put_zeros((void *)(at & ~(uintptr_t)(page_bytes - 1)), page_bytes, MAP_FIXED) &&
        !put_zeros((void *)base, bytes, MAP_FIXED) && !put_zeros_instead((void *)base, bytes)) {
      return 0;
    }
    __atomic_store_n(__atomic_load_n(&guarded[i].lost, __ATOMIC_RELAXED), 1, __ATOMIC_RELEASE);
    return 1;
  }
  return 0;
}

/* Have the system's own action. A fault comes again by itself; a signal that was sent does not. */
static void give_up(int number, int kernels) {
  struct sigaction plain;
  memset(&plain, 0, sizeof plain);
  plain.sa_handler = SIG_DFL;
  sigaction(number, &plain, NULL);
  if (!kernels) raise(number);
}

/* Call the handler that was there before us as the kernel would have called it. */
static void call_before(int number, siginfo_t *info, void *context) {
  struct sigaction theirs = before;
  sigset_t mask = theirs.sa_mask, saved;
  if (!(theirs.sa_flags & SA_NODEFER)) sigaddset(&mask, number);
  if (theirs.sa_flags & SA_RESETHAND) before.sa_handler = SIG_DFL, before.sa_flags = 0;
  pthread_sigmask(SIG_BLOCK, &mask, &saved);
  if (theirs.sa_flags & SA_SIGINFO) {
    theirs.sa_sigaction(number, info, context);
  } else {
    theirs.sa_handler(number);
  }
  pthread_sigmask(SIG_SETMASK, &saved, NULL);
}

/* Leave it to whoever had the signal before. Some of them (faulthandler) put back what they found, which may be ours,
 * and send it again: that is the system's then. One that leaves its handler by a jump does not come back here, so it is
 * only taken for being in there if this frame lies beneath that one. */
static void pass_on(int number, siginfo_t *info, void *context) {
  int kernels = info->si_code > 0;
  long thread = syscall(SYS_gettid);
  uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
  int again = !kernels && info->si_pid == getpid() && __atomic_load_n(&passing_thread, __ATOMIC_ACQUIRE) == thread &&
              frame < __atomic_load_n(&passing_frame, __ATOMIC_RELAXED);
  int has = (before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
  if (again || !has) {
    /* The kernel lets nobody ignore a fault. */
    if (again || kernels || before.sa_handler == SIG_DFL) give_up(number, kernels);
    return;
  }
  __atomic_store_n(&passing_frame, frame, __ATOMIC_RELAXED);
  __atomic_store_n(&passing_thread, thread, __ATOMIC_RELEASE);
  call_before(number, info, context);
  __atomic_store_n(&passing_thread, 0, __ATOMIC_RELEASE);
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
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER; /* a fault may come while one is handled */
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

static int guard_count(void) { return __atomic_load_n(&guarded_count, __ATOMIC_RELAXED); }

static void guard_remove(int slot) {
  __atomic_store_n(&guarded[slot].base, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&guarded_next, slot, __ATOMIC_RELAXED);
  __atomic_sub_fetch(&guarded_count, 1, __ATOMIC_ACQ_REL);
}

/* How large a file is, and when it was last changed. */
static int file_state(int fd, int64_t *size, int64_t *changed_ns) {
  struct stat found;
  if (fstat(fd, &found) != 0) return -errno;
  *size = found.st_size;
  *changed_ns = found.st_ctim.tv_sec * INT64_C(1000000000) + found.st_ctim.tv_nsec;
  return 0;
}

/* By the clock that the kernel dates changes of files with. */
static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
#endif
