/* Stands before libc (LD_PRELOAD) and lets memory run out.

   memory_arm(nth, forever): of the requests for memory from now on the nth fails, and with `forever`
   every later one.
   memory_disarm() ends it and returns how many requests there were. */
#include <errno.h>
#include <stddef.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static int armed, armed_nth, armed_forever, seen;

void memory_arm(int nth, int forever) {
  armed_nth = nth;
  armed_forever = forever;
  seen = 0;
  armed = 1;
}

int memory_disarm(void) {
  armed = 0;
  return seen;
}

static int fails(void) {
  if (!armed) return 0;
  ++seen;
  if (seen != armed_nth && !(armed_forever && seen > armed_nth)) return 0;
  errno = ENOMEM;
  return 1;
}

void* malloc(size_t size) { return fails() ? NULL : __libc_malloc(size); }
void* calloc(size_t count, size_t size) { return fails() ? NULL : __libc_calloc(count, size); }
void* realloc(void* old, size_t size) { return fails() ? NULL : __libc_realloc(old, size); }
void* aligned_alloc(size_t alignment, size_t size) {
  return fails() ? NULL : __libc_memalign(alignment, size);
}
