/* Stands before libc (LD_PRELOAD) and lets chosen system calls go wrong.

   fault_arm(action, calls, nth, value): of the calls in the mask `calls`, the nth and, for SHORT and
   INTERRUPT, every later one is affected:
     FAIL       returns -1 with errno `value`
     KILL       the process is killed before the call
     SIGNAL     signal `value` is raised before the call, which then happens
     SHORT      a write or read moves at most `value` bytes
     INTERRUPT  every other call returns -1 with EINTR
   fault_disarm() ends it and returns how many calls of the mask there were. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAIL, KILL, SIGNAL, SHORT, INTERRUPT };
enum { WRITE = 1, SYNC = 2, RENAME = 4, CREATE = 8, CLOSE = 16, READ = 32, MAP = 64, STAT = 128 };

static int armed_action, armed_calls, armed_nth, armed_value, seen;

void fault_arm(int action, int calls, int nth, int value) {
  armed_action = action;
  armed_nth = nth;
  armed_value = value;
  seen = 0;
  armed_calls = calls;
}

int fault_disarm(void) {
  armed_calls = 0;
  return seen;
}

/* Whether the call is to return -1; *most is what a write or read may move. */
static int fails(int call, size_t* most) {
  if ((armed_calls & call) == 0) return 0;
  ++seen;
  const int affected =
      armed_action == SHORT || armed_action == INTERRUPT ? seen >= armed_nth : seen == armed_nth;
  if (!affected) return 0;
  switch (armed_action) {
    case KILL:
      kill(getpid(), SIGKILL);
      return 0;
    case SIGNAL:
      raise(armed_value);
      return 0;
    case SHORT:
      *most = (size_t)armed_value;
      return 0;
    case INTERRUPT:
      errno = EINTR;
      return (seen - armed_nth) % 2 == 0;
    default:
      errno = armed_value;
      return 1;
  }
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void* data, size_t size) {
  size_t most = size;
  if (fails(WRITE, &most)) return -1;
  return NEXT(write)(fd, data, most < size ? most : size);
}

ssize_t writev(int fd, const struct iovec* parts, int count) {
  size_t most = (size_t)-1;
  if (fails(WRITE, &most)) return -1;
  if (most == (size_t)-1) return NEXT(writev)(fd, parts, count);
  return NEXT(write)(fd, parts[0].iov_base, most < parts[0].iov_len ? most : parts[0].iov_len);
}

ssize_t pread(int fd, void* data, size_t size, off_t offset) {
  size_t most = size;
  if (fails(READ, &most)) return -1;
  return NEXT(pread)(fd, data, most < size ? most : size, offset);
}

/* Memory itself also comes from mmap: only mappings of files are meant. */
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  size_t most;
  if (fd >= 0 && fails(MAP, &most)) return MAP_FAILED;
  return NEXT(mmap)(address, size, protection, flags, fd, offset);
}

int fstat(int fd, struct stat* status) {
  size_t most;
  return fails(STAT, &most) ? -1 : NEXT(fstat)(fd, status);
}

int fsync(int fd) {
  size_t most;
  return fails(SYNC, &most) ? -1 : NEXT(fsync)(fd);
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  size_t most;
  return fails(RENAME, &most) ? -1 : NEXT(renameat)(from_folder, from, to_folder, to);
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  size_t most;
  return fails(RENAME, &most) ? -1 : NEXT(renameat2)(from_folder, from, to_folder, to, flags);
}

int close(int fd) {
  size_t most;
  if (!fails(CLOSE, &most)) return NEXT(close)(fd);
  const int error = errno;
  NEXT(close)(fd); /* as Linux does, whatever it returns */
  errno = error;
  return -1;
}

static int create(int folder, const char* path, int flags, mode_t mode) {
  size_t most;
  if ((flags & O_CREAT) != 0 && fails(CREATE, &most)) return -1;
  return NEXT(openat)(folder, path, flags, mode);
}

int openat(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return create(folder, path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  return create(folder, path, flags, mode);
}
