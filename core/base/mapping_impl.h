/* Maps that may lose pages: if a file was truncated, or the disk cannot read, touching such a page raises SIGBUS. The
 * handler here replaces the page by zeros and marks the map as lost; the reader goes on, and checks the mark before it
 * trusts what it read. (Wayland's compositors guard the memory of their clients so.)
 *
 * A fault outside our maps is passed to the handler that was installed before. */
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
#define MAP_FIXED_NOREPLACE 0x100000 /* of Linux 4.17; an older kernel takes it as a hint */
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
static struct sigaction before;  /* the handler installed before ours */
static uintptr_t passing_frame;  /* the stack frame of the thread that is in that handler, */
static long passing_thread;      /* and the thread's id */
static pthread_mutex_t guarding = PTHREAD_MUTEX_INITIALIZER;

/* A raw system call: sanitizers replace mmap of the library. */
static int put_zeros(void *at, size_t n, int how) {
  return (void *)syscall(SYS_mmap, at, n, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | how, -1, 0) == at;
}

/* Where the limit of maps is reached, one has to be unmapped first. */
static int put_zeros_instead(void *at, size_t n) {
  return syscall(SYS_munmap, at, n) == 0 && put_zeros(at, n, MAP_FIXED_NOREPLACE);
}

static int mend(uintptr_t at) {
  int i, high = __atomic_load_n(&guarded_high, __ATOMIC_ACQUIRE);
  for (i = 0; i < high; i++) {
    uintptr_t base = __atomic_load_n(&guarded[i].base, __ATOMIC_ACQUIRE);
    size_t bytes = __atomic_load_n(&guarded[i].bytes, __ATOMIC_RELAXED);
    if (base <= 1 || at < base || at - base >= bytes) continue;
    /* Replacing one page splits the map in three; if that exceeds the limit of maps, all of it is replaced. */
    if (!put_zeros((void *)(at & ~(uintptr_t)(page_bytes - 1)), page_bytes, MAP_FIXED) &&
        !put_zeros((void *)base, bytes, MAP_FIXED) && !put_zeros_instead((void *)base, bytes)) {
      return 0;
    }
    __atomic_store_n(__atomic_load_n(&guarded[i].lost, __ATOMIC_RELAXED), 1, __ATOMIC_RELEASE);
    return 1;
  }
  return 0;
}

/* Take the system's default action. A fault repeats by itself; a sent signal does not. */
static void give_up(int number, int kernels) {
  struct sigaction plain;
  memset(&plain, 0, sizeof plain);
  plain.sa_handler = SIG_DFL;
  sigaction(number, &plain, NULL);
  if (!kernels) raise(number);
}

/* Call the previous handler as the kernel would have called it. */
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

/* Pass the signal to the previous handler. Some handlers (faulthandler) restore the action they found, which may be
 * ours, and raise the signal again: then take the default action. A handler may also leave by a jump without returning
 * here, so the thread counts as inside it only if this frame lies below the noted one on the stack. */
static void pass_on(int number, siginfo_t *info, void *context) {
  int kernels = info->si_code > 0;
  long thread = syscall(SYS_gettid);
  uintptr_t frame = (uintptr_t)__builtin_frame_address(0);
  int again = !kernels && info->si_pid == getpid() && __atomic_load_n(&passing_thread, __ATOMIC_ACQUIRE) == thread &&
              frame < __atomic_load_n(&passing_frame, __ATOMIC_RELAXED);
  int has = (before.sa_flags & SA_SIGINFO) || (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN);
  if (again || !has) {
    /* The kernel does not let a process ignore a fault. */
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

/* Make sure our handler is the first: another may have been installed since. */
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

/* Guard a map; its slot, or -ENOMEM if there are too many. */
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
  return -ENOMEM; /* slots were freed behind us */
}

static int guard_count(void) { return __atomic_load_n(&guarded_count, __ATOMIC_RELAXED); }

static void guard_remove(int slot) {
  __atomic_store_n(&guarded[slot].base, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&guarded_next, slot, __ATOMIC_RELAXED);
  __atomic_sub_fetch(&guarded_count, 1, __ATOMIC_ACQ_REL);
}

/* The size of a file, and when it was last changed. */
static int file_state(int fd, int64_t *size, int64_t *changed_ns) {
  struct stat found;
  if (fstat(fd, &found) != 0) return -errno;
  *size = found.st_size;
  *changed_ns = found.st_ctim.tv_sec * INT64_C(1000000000) + found.st_ctim.tv_nsec;
  return 0;
}

/* The clock by which the kernel dates file changes. */
static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME_COARSE, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}
#endif
