/* A disk that records what is done to it, and fails on demand: preloaded before the C library (LD_PRELOAD).

   Operations that change a path below `root` are counted, from 1, and written to a trace. At operation `at`, `fault`
   happens. Whoever calls, Python or native code, is seen: all write through these functions of the C library. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NONE, ERROR_ONCE, FULL_FROM, SHORT_ONCE, KILL, KILL_HALF };

static char root[PATH_MAX], newest[PATH_MAX]; /* the file created last */
static size_t root_length;
static int fault, code, trace = -1;
static long at;
static long *count; /* shared, as the lock is, with the process that forked this one, and with those that it forks */
static pthread_mutex_t *one_at_a_time;

#define REAL(result, name, ...) \
    static result (*real_##name)(__VA_ARGS__); \
    if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name)

static void lock(void) {
    if (pthread_mutex_lock(one_at_a_time) == EOWNERDEAD) pthread_mutex_consistent(one_at_a_time);
}

static void unlock(void) { pthread_mutex_unlock(one_at_a_time); }

__attribute__((constructor)) static void begin(void) {
    count = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    one_at_a_time = (pthread_mutex_t *)(count + 8);
    pthread_mutexattr_t how;
    pthread_mutexattr_init(&how);
    pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST); /* a process that is killed does not keep the lock */
    pthread_mutex_init(one_at_a_time, &how);
}

void disk_arm(const char *below, int what, long when, int error, int to) {
    snprintf(root, sizeof root, "%s", below);
    fault = what, at = when, code = error, trace = to, *count = 0;
    root_length = strlen(root);
}

long disk_count(void) { return *count; }

static void record(char, const char *, const char *, uint64_t, const void *, uint64_t);

/* The file created last has been renamed to `path` by a system call that did not pass through the C library. */
void disk_renamed(const char *path) {
    lock();
    if (root_length) record('r', newest, path, 0, NULL, 0);
    unlock();
}

static int inside(const char *path) {
    return root_length && !strncmp(path, root, root_length) && (path[root_length] == '/' || !path[root_length]);
}

static int of_handle(int handle, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return inside(path) && !(length > 10 && !strcmp(path + length - 10, " (deleted)"));
}

static int of_name(int folder, const char *name, char *path) {
    if (!root_length) return 0;
    char base[PATH_MAX];
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
    } else {
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else {
            char link[64];
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            ssize_t length = readlink(link, base, sizeof base - 1);
            if (length <= 0) return 0;
            base[length] = 0;
        }
        if (snprintf(path, PATH_MAX, "%s/%s", base, name) >= PATH_MAX) return 0;
    }
    return inside(path);
}

static void put(const void *data, size_t length) {
    REAL(ssize_t, write, int, const void *, size_t);
    const char *next = data;
    while (length) {
        ssize_t done = real_write(trace, next, length);
        if (done <= 0) abort();
        next += done, length -= done;
    }
}

/* kind, lengths of both paths (below the root), offset, length of the data; then the paths and the data */
static void record(char kind, const char *path, const char *other, uint64_t offset, const void *data, uint64_t length) {
    if (trace < 0) return;
    const char *first = path + root_length, *second = other ? other + root_length : "";
    uint32_t lengths[2] = {strlen(first), strlen(second)};
    put(&kind, 1), put(lengths, sizeof lengths), put(&offset, 8), put(&length, 8);
    put(first, lengths[0]), put(second, lengths[1]);
    if (data) put(data, length);
}

/* Whether the operation that comes next fails, with errno set. `grows`: it needs room. */
static int fails(int grows) {
    long now = ++*count;
    if (fault == KILL && now == at) unlock(), _exit(137);
    if ((fault == ERROR_ONCE && now == at) || (fault == FULL_FROM && (now == at || (now > at && grows)))) {
        errno = code;
        return 1;
    }
    return 0;
}

typedef ssize_t (*Writing)(int, const void *, size_t, off_t);

static ssize_t write_there(int handle, const char *path, const void *data, size_t length, off_t offset, Writing how) {
    lock();
    long now = *count + 1;
    size_t wanted = length;
    ssize_t done = -1;
    int halved = now == at && length > 1 && (fault == SHORT_ONCE || fault == FULL_FROM || fault == KILL_HALF);
    if (halved) wanted = length / 2, ++*count;
    if (halved || !fails(1)) {
        struct stat found;
        off_t where = offset;
        if (where < 0) {
            where = fcntl(handle, F_GETFL) & O_APPEND ? (fstat(handle, &found), found.st_size)
                                                      : lseek(handle, 0, SEEK_CUR);
        }
        done = how(handle, data, wanted, offset);
        if (halved && fault == KILL_HALF) unlock(), _exit(137);
        if (done > 0) record('w', path, NULL, where, data, done);
    }
    unlock();
    return done;
}

static ssize_t plain(int handle, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, write, int, const void *, size_t);
    (void)offset;
    return real_write(handle, data, length);
}

static ssize_t placed(int handle, const void *data, size_t length, off_t offset) {
    REAL(ssize_t, pwrite64, int, const void *, size_t, off_t);
    return real_pwrite64(handle, data, length, offset);
}

ssize_t write(int handle, const void *data, size_t length) {
    char path[PATH_MAX];
    if (!root_length || handle == trace || !of_handle(handle, path)) return plain(handle, data, length, -1);
    return write_there(handle, path, data, length, -1, plain);
}

ssize_t pwrite64(int handle, const void *data, size_t length, off_t offset) {
    char path[PATH_MAX];
    if (!root_length || !of_handle(handle, path)) return placed(handle, data, length, offset);
    return write_there(handle, path, data, length, offset, placed);
}

ssize_t pwrite(int handle, const void *data, size_t length, off_t offset) {
    return pwrite64(handle, data, length, offset);
}

ssize_t writev(int handle, const struct iovec *parts, int number) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    char path[PATH_MAX];
    if (!root_length || !of_handle(handle, path)) return real_writev(handle, parts, number);
    for (int part = 0; part < number; part++) /* the first part alone: a caller has to go on with the rest */
        if (parts[part].iov_len) return write(handle, parts[part].iov_base, parts[part].iov_len);
    return 0;
}

static int open_there(int folder, const char *name, int flags, mode_t mode) {
    REAL(int, openat64, int, const char *, int, ...);
    char path[PATH_MAX];
    if (!(flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC)) || !of_name(folder, name, path))
        return real_openat64(folder, name, flags, mode);
    lock();
    struct stat found;
    int existed = !fstatat(folder, name, &found, 0), handle = -1;
    if (!fails(!existed)) {
        handle = real_openat64(folder, name, flags, mode);
        if (handle >= 0 && !existed) record('c', path, NULL, 0, NULL, 0), strcpy(newest, path);
        else if (handle >= 0 && flags & O_TRUNC) record('t', path, NULL, 0, NULL, 0);
    }
    unlock();
    return handle;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags), mode = va_arg(rest, mode_t), va_end(rest); \
    }

int open(const char *name, int flags, ...) { MODE(flags) return open_there(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return open_there(AT_FDCWD, name, flags, mode); }
int openat(int folder, const char *name, int flags, ...) { MODE(flags) return open_there(folder, name, flags, mode); }
int openat64(int folder, const char *name, int flags, ...) { MODE(flags) return open_there(folder, name, flags, mode); }

/* An operation on one or two names: done by `call`, recorded as `kind`. */
#define NAMED(kind, grows, folder, name, other_folder, other_name, call) \
    char path[PATH_MAX], other[PATH_MAX] = ""; \
    int two = other_name != NULL; \
    if (!of_name(folder, name, path) || (two && !of_name(other_folder, other_name, other))) return call; \
    lock(); \
    int result = fails(grows) ? -1 : call; \
    if (!result) record(kind, path, two ? other : NULL, 0, NULL, 0); \
    unlock(); \
    return result

static const char *const nothing = NULL;

int renameat(int from, const char *name, int to, const char *new_name) {
    REAL(int, renameat, int, const char *, int, const char *);
    NAMED('r', 0, from, name, to, new_name, real_renameat(from, name, to, new_name));
}

int rename(const char *name, const char *new_name) { return renameat(AT_FDCWD, name, AT_FDCWD, new_name); }

int unlinkat(int folder, const char *name, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    NAMED(flags & AT_REMOVEDIR ? 'd' : 'u', 0, folder, name, 0, nothing, real_unlinkat(folder, name, flags));
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char *name, mode_t mode) {
    REAL(int, mkdirat, int, const char *, mode_t);
    struct stat found;
    if (!fstatat(folder, name, &found, 0)) return real_mkdirat(folder, name, mode);
    NAMED('m', 1, folder, name, 0, nothing, real_mkdirat(folder, name, mode));
}

int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* An operation on an open file. */
#define HANDLED(kind, grows, handle, offset, call) \
    char path[PATH_MAX]; \
    if (!root_length || !of_handle(handle, path)) return call; \
    lock(); \
    int result = fails(grows) ? -1 : call; \
    if (!result) record(kind, path, NULL, offset, NULL, 0); \
    unlock(); \
    return result

int fsync(int handle) {
    REAL(int, fsync, int);
    HANDLED('s', 0, handle, 0, real_fsync(handle));
}

int fdatasync(int handle) {
    REAL(int, fdatasync, int);
    HANDLED('s', 0, handle, 0, real_fdatasync(handle));
}

int ftruncate64(int handle, off_t length) {
    REAL(int, ftruncate64, int, off_t);
    HANDLED('t', 0, handle, length, real_ftruncate64(handle, length));
}

int ftruncate(int handle, off_t length) { return ftruncate64(handle, length); }

int truncate64(const char *name, off_t length) {
    int handle = open_there(AT_FDCWD, name, O_WRONLY, 0);
    if (handle < 0) return -1;
    int result = ftruncate64(handle, length), saved = errno;
    close(handle);
    errno = saved;
    return result;
}

int truncate(const char *name, off_t length) { return truncate64(name, length); }
