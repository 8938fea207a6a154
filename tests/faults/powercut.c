/* What a disk holds if the power goes now: each file as it was when it was last synced, each directory with the names
 * that it had at its own last sync, the worst that POSIX allows. Preloaded into a process.
 *
 * POWERCUT_ROOT     the directory that is looked after; what lies in it at the start is on disk
 * POWERCUT_DURABLE  where that is kept, by identities: a file's content, or a directory's lines "f|d identity name";
 *                   `root` has the identity of POWERCUT_ROOT
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *durable;
static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER; /* an older look never takes the place of a newer */

/* An inode's number may be another's once it is gone, its number and birth are not. */
static int identify(int fd, const char *name, char *out, size_t n, int *is_dir) {
  struct statx s;
  if (statx(fd, name, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &s)) return -1;
  *is_dir = S_ISDIR(s.stx_mode);
  snprintf(out, n, "%llu-%lld.%u", (unsigned long long)s.stx_ino, (long long)s.stx_btime.tv_sec, s.stx_btime.tv_nsec);
  return S_ISDIR(s.stx_mode) || S_ISREG(s.stx_mode) ? 0 : -1;
}

static int copy_content(int fd, FILE *to) {
  char path[64], buffer[1 << 14];
  ssize_t n;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  int from = open(path, O_RDONLY | O_CLOEXEC); /* fd may be for writing only */
  if (from < 0) return -1;
  while ((n = read(from, buffer, sizeof buffer)) > 0) fwrite(buffer, 1, n, to);
  close(from);
  return n < 0 ? -1 : 0;
}

static int list_names(int fd, FILE *to) {
  char path[64], id[64];
  struct dirent *e;
  int is_dir;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  DIR *d = opendir(path);
  if (!d) return -1;
  while ((e = readdir(d)))
    if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !identify(dirfd(d), e->d_name, id, sizeof id, &is_dir))
      fprintf(to, "%c %s %s\n", is_dir ? 'd' : 'f', id, e->d_name);
  closedir(d);
  return 0;
}

/* Look first, sync then, and only keep what was looked at once the sync succeeded. */
static int look_and_sync(int fd, int (*sync)(int), const char *id, int is_dir) {
  char kept[4096], made[4160];
  int status, error;
  snprintf(kept, sizeof kept, "%s/%s", durable, id);
  snprintf(made, sizeof made, "%s.made", kept);
  FILE *to = fopen(made, "we");
  if (!to || (is_dir ? list_names(fd, to) : copy_content(fd, to)) || fclose(to)) abort();
  status = sync(fd);
  error = errno;
  if (status ? unlink(made) : rename(made, kept)) abort();
  errno = error;
  return status;
}

static int synced(int fd, int (*sync)(int)) {
  char id[64];
  int is_dir, status;
  if (!durable || identify(fd, "", id, sizeof id, &is_dir)) return sync(fd);
  pthread_mutex_lock(&one_at_a_time);
  status = look_and_sync(fd, sync, id, is_dir);
  pthread_mutex_unlock(&one_at_a_time);
  return status;
}

static int nothing(int fd) { return fd < 0; }

static int keep(const char *path, const struct stat *s, int type, struct FTW *at) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || synced(fd, nothing)) abort();
  close(fd);
  return (void)s, (void)type, (void)at, 0;
}

__attribute__((constructor)) static void begin(void) {
  char id[64], path[4096];
  const char *root = getenv("POWERCUT_ROOT");
  int is_dir;
  durable = getenv("POWERCUT_DURABLE");
  if (!durable || !root) return;
  snprintf(path, sizeof path, "%s/root", durable);
  FILE *to = fopen(path, "we");
  if (!to || identify(AT_FDCWD, root, id, sizeof id, &is_dir)) abort();
  fputs(id, to);
  fclose(to);
  if (nftw(root, keep, 16, FTW_PHYS)) abort();
}

int fsync(int fd) { return synced(fd, (int (*)(int))dlsym(RTLD_NEXT, "fsync")); }

int fdatasync(int fd) { return synced(fd, (int (*)(int))dlsym(RTLD_NEXT, "fdatasync")); }
