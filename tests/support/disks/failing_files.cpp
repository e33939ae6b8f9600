// Preloaded into a process: makes its changes under one folder fail, as on a disk that is full, damaged, read-only or
// slow. A file that the test maps and changes while the process runs says which folder, how and when.

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// The layout is that of `support.failing_files`.
struct Control {
  std::atomic<long> count;   // changes tried under the folder since the test set it to 0
  std::atomic<long> failed;  // the number of those that failed
  std::atomic<long> from;    // the first change that fails, counted from 0; below 0: none
  std::atomic<long> until;   // the first change that succeeds again
  std::atomic<long> error;   // the error number; 0: changes only take long
  std::atomic<long> pause_us;
  char folder[PATH_MAX];
};

Control* control() {
  static Control* const found = [] {
    const char* path = getenv("FAILING_FILES");
    void* mapped = MAP_FAILED;
    if (path != nullptr) {
      auto* open_file = reinterpret_cast<int (*)(const char*, int, ...)>(dlsym(RTLD_NEXT, "open"));
      const int file = open_file(path, O_RDWR | O_CLOEXEC);
      if (file >= 0) {
        mapped = mmap(nullptr, sizeof(Control), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
      }
    }
    return mapped == MAP_FAILED ? nullptr : static_cast<Control*>(mapped);
  }();
  return found;
}

bool is_under(const char* path) {
  const char* folder = control()->folder;
  const size_t length = strlen(folder);
  return length > 0 && strncmp(path, folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

// True if this change fails, with errno set.
bool fails(bool under) {
  if (!under) return false;
  Control& all = *control();
  const long number = all.count.fetch_add(1), from = all.from.load();
  if (from < 0 || number < from || number >= all.until.load()) return false;
  all.failed.fetch_add(1);
  if (const long pause = all.pause_us.load(); pause > 0) usleep(static_cast<useconds_t>(pause));
  if (all.error.load() == 0) return false;
  errno = static_cast<int>(all.error.load());
  return true;
}

bool fails(int file) {
  if (control() == nullptr) return false;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const int before = errno;
  const ssize_t length = readlink(link, path, sizeof path - 1);
  errno = before;
  if (length <= 0) return false;
  path[length] = 0;
  return fails(is_under(path));
}

bool fails(int folder, const char* path) {
  if (control() == nullptr || path == nullptr) return false;
  if (path[0] == '/') return fails(is_under(path));
  char base[PATH_MAX], whole[2 * PATH_MAX];
  const int before = errno;
  if (folder == AT_FDCWD) {
    if (getcwd(base, sizeof base) == nullptr) base[0] = 0;
  } else {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t length = readlink(link, base, sizeof base - 1);
    base[length > 0 ? length : 0] = 0;
  }
  errno = before;
  snprintf(whole, sizeof whole, "%s/%s", base, path);
  return fails(is_under(whole));
}

// Removing a file needs no space: only a read-only disk refuses it.
bool refuses_removal(int folder, const char* path) {
  return control() != nullptr && control()->error.load() == EROFS && fails(folder, path);
}

bool changes(int flags) { return (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) != 0; }
bool changes(const char* mode) { return strpbrk(mode, "wa+") != nullptr; }

template <typename Function>
Function next(Function, const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define NEXT(name) static const auto real = next(name, #name)

#define OPEN(name)                                                                 \
  int name(const char* path, int flags, ...) {                                     \
    NEXT(name);                                                                    \
    va_list rest;                                                                  \
    va_start(rest, flags);                                                         \
    const mode_t mode = va_arg(rest, mode_t);                                      \
    va_end(rest);                                                                  \
    return changes(flags) && fails(AT_FDCWD, path) ? -1 : real(path, flags, mode); \
  }
#define OPENAT(name)                                                                     \
  int name(int folder, const char* path, int flags, ...) {                               \
    NEXT(name);                                                                          \
    va_list rest;                                                                        \
    va_start(rest, flags);                                                               \
    const mode_t mode = va_arg(rest, mode_t);                                            \
    va_end(rest);                                                                        \
    return changes(flags) && fails(folder, path) ? -1 : real(folder, path, flags, mode); \
  }
#define OF_FILE(type, name, takes, gives) \
  type name takes {                       \
    NEXT(name);                           \
    return fails(file) ? -1 : real gives; \
  }

extern "C" {
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

FILE* fopen(const char* path, const char* mode) {
  NEXT(fopen);
  return changes(mode) && fails(AT_FDCWD, path) ? nullptr : real(path, mode);
}
FILE* fopen64(const char* path, const char* mode) {
  NEXT(fopen64);
  return changes(mode) && fails(AT_FDCWD, path) ? nullptr : real(path, mode);
}
size_t fwrite(const void* data, size_t size, size_t count, FILE* stream) {
  NEXT(fwrite);
  return fails(fileno(stream)) ? 0 : real(data, size, count, stream);
}

OF_FILE(ssize_t, write, (int file, const void* data, size_t size), (file, data, size))
OF_FILE(ssize_t, pwrite, (int file, const void* data, size_t size, off_t at), (file, data, size, at))
OF_FILE(ssize_t, pwrite64, (int file, const void* data, size_t size, off64_t at), (file, data, size, at))
OF_FILE(ssize_t, writev, (int file, const iovec* parts, int count), (file, parts, count))
OF_FILE(ssize_t, sendfile, (int file, int from, off_t* at, size_t size), (file, from, at, size))
OF_FILE(ssize_t, sendfile64, (int file, int from, off64_t* at, size_t size), (file, from, at, size))
OF_FILE(int, ftruncate, (int file, off_t size), (file, size))
OF_FILE(int, ftruncate64, (int file, off64_t size), (file, size))
OF_FILE(int, fsync, (int file), (file))
OF_FILE(int, fdatasync, (int file), (file))

ssize_t copy_file_range(int from, off64_t* from_at, int file, off64_t* at, size_t size, unsigned flags) {
  NEXT(copy_file_range);
  return fails(file) ? -1 : real(from, from_at, file, at, size, flags);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
  NEXT(posix_fallocate64);
  return fails(file) ? errno : real(file, at, size);
}
int rename(const char* from, const char* to) {
  NEXT(rename);
  return fails(AT_FDCWD, to) ? -1 : real(from, to);
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  return fails(AT_FDCWD, path) ? -1 : real(path, mode);
}
int unlink(const char* path) {
  NEXT(unlink);
  return refuses_removal(AT_FDCWD, path) ? -1 : real(path);
}
int unlinkat(int folder, const char* path, int flags) {
  NEXT(unlinkat);
  return refuses_removal(folder, path) ? -1 : real(folder, path, flags);
}
int rmdir(const char* path) {
  NEXT(rmdir);
  return refuses_removal(AT_FDCWD, path) ? -1 : real(path);
}
}
