/* Records what a process does to the files of one directory, below the C library: an LD_PRELOAD of glibc on Linux.

   KSTORE_RECORDED is the directory, KSTORE_RECORDING the file that gets one line for each successful call:
   kind, inode, position, size, mtime in ns, path, target, bytes as hex; separated by tabs.

   Each call and its line are made under one lock of all processes, so the lines are in the order of the calls. Bytes
   that a program stores into a shared mapping make no call: before each line, those that differ from what was last seen
   are recorded as stores. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MAPS_MAX 256

static const char *root, *recording;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct map { char *start; size_t size; int fd; char *seen; } maps[MAPS_MAX];

__attribute__((constructor)) static void begin(void) {
    root = getenv("KSTORE_RECORDED");
    recording = getenv("KSTORE_RECORDING");
}

static int enter(void) {
    pthread_mutex_lock(&mutex);
    int gate = REAL(open)(recording, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (gate < 0 || flock(gate, LOCK_EX)) abort();
    return gate;
}

static void leave(int gate) {
    REAL(close)(gate);
    pthread_mutex_unlock(&mutex);
}

/* The path of a descriptor; 0 if it is not below the directory. */
static int path_of(int fd, char *path) {
    char name[64];
    if (!root) return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, path, 4095);
    if (size < 0) return 0;
    path[size] = 0;
    return !strncmp(path, root, strlen(root));
}

static void line(int gate, const char *kind, int fd, long position, long size, const char *path, const char *target,
                 const struct iovec *data, int count, long limit) {
    struct stat found = {0};
    if (fd >= 0 && fstat(fd, &found)) abort();
    long total = 0;
    for (int i = 0; i < count; i++) total += data[i].iov_len;
    if (total > limit) total = limit;
    char *text = malloc(9000 + 2 * total);
    long at = sprintf(text, "%s\t%lu\t%ld\t%ld\t%ld\t%s\t%s\t", kind, fd >= 0 ? (unsigned long)found.st_ino : 0, position,
                      size, found.st_mtim.tv_sec * 1000000000L + found.st_mtim.tv_nsec, path, target);
    for (int i = 0; i < count && total; i++)
        for (size_t j = 0; j < data[i].iov_len && total; j++, total--)
            at += sprintf(text + at, "%02x", ((unsigned char *)data[i].iov_base)[j]);
    text[at++] = '\n';
    if (REAL(write)(gate, text, at) != at) abort();
    free(text);
}

/* Records the stores since the last call. A mapping ends with its file. */
static void stores(int gate) {
    char path[4096];
    for (struct map *map = maps; map < maps + MAPS_MAX; map++) {
        struct stat found;
        if (!map->start || fstat(map->fd, &found)) continue;
        size_t stop = map->size < (size_t)found.st_size ? map->size : (size_t)found.st_size;
        for (size_t at = 0; at < stop; at++) {
            if (map->start[at] == map->seen[at]) continue;
            size_t end = at;
            while (end < stop && map->start[end] != map->seen[end]) {
                map->seen[end] = map->start[end];
                end++;
            }
            struct iovec data = {map->seen + at, end - at};
            path_of(map->fd, path);
            line(gate, "store", map->fd, at, 0, path, "", &data, 1, end - at);
            at = end;
        }
    }
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static int opened(int at, const char *name, int flags, mode_t mode) {
    char path[4096];
    if (!root) return REAL(openat)(at, name, flags, mode);
    int gate = enter();
    int is_new = (flags & O_CREAT) && faccessat(at, name, F_OK, AT_SYMLINK_NOFOLLOW);
    int fd = REAL(openat)(at, name, flags, mode);
    if (fd >= 0 && (is_new || (flags & O_TRUNC)) && path_of(fd, path)) {
        stores(gate);
        if (is_new) line(gate, "create", fd, 0, 0, path, "", 0, 0, 0);
        else line(gate, "truncate", fd, 0, 0, path, "", 0, 0, 0);
    }
    leave(gate);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | __O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int open64(const char *name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode); }
int openat(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }
int openat64(int at, const char *name, int flags, ...) { MODE(flags) return opened(at, name, flags, mode); }

static ssize_t written(int fd, const struct iovec *data, int count, off_t position, int flags) {
    char path[4096];
    if (!path_of(fd, path)) return REAL(pwritev2)(fd, data, count, position, flags);
    int gate = enter();
    ssize_t size = REAL(pwritev2)(fd, data, count, position, flags);
    if (size > 0) {
        stores(gate);
        line(gate, flags & RWF_DSYNC ? "write_and_sync" : "pwrite", fd, position, 0, path, "", data, count, size);
    }
    leave(gate);
    return size;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t position) {
    struct iovec all = {(void *)data, size};
    return written(fd, &all, 1, position, 0);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off_t position) { return pwrite(fd, data, size, position); }
ssize_t pwritev(int fd, const struct iovec *data, int count, off_t position) { return written(fd, data, count, position, 0); }
ssize_t pwritev64(int fd, const struct iovec *data, int count, off_t position) { return written(fd, data, count, position, 0); }
ssize_t pwritev2(int fd, const struct iovec *data, int count, off_t position, int flags) {
    return written(fd, data, count, position, flags);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int count, off_t position, int flags) {
    return written(fd, data, count, position, flags);
}
ssize_t write(int fd, const void *data, size_t size) {
    char path[4096];
    struct iovec all = {(void *)data, size};
    if (!path_of(fd, path)) return REAL(write)(fd, data, size);
    off_t position = lseek(fd, 0, SEEK_CUR);
    ssize_t done = written(fd, &all, 1, position, 0);
    if (done > 0) lseek(fd, position + done, SEEK_SET);
    return done;
}

/* A call on a descriptor that is recorded as this kind, if it succeeds. */
#define CALL(kind, position, size, call) \
    char path[4096]; \
    if (!path_of(fd, path)) return call; \
    int gate = enter(); \
    int result = call; \
    if (!result) { stores(gate); line(gate, kind, fd, position, size, path, "", 0, 0, 0); } \
    leave(gate); \
    return result;

int ftruncate(int fd, off_t size) { CALL("truncate", 0, size, REAL(ftruncate)(fd, size)) }
int ftruncate64(int fd, off_t size) { return ftruncate(fd, size); }
/* The file grows, with zeros. */
int posix_fallocate(int fd, off_t at, off_t size) { CALL("map", 0, at + size, REAL(posix_fallocate)(fd, at, size)) }
int posix_fallocate64(int fd, off_t at, off_t size) { return posix_fallocate(fd, at, size); }

static const char *sync_kind(int fd, const char *kind) {
    struct stat found;
    return !fstat(fd, &found) && S_ISDIR(found.st_mode) ? "sync_dir" : kind;
}
/* Stores that come while the sync runs are not synced: those before it are recorded first. */
#define SYNC(kind, call) \
    char path[4096]; \
    if (!path_of(fd, path)) return call; \
    int gate = enter(); \
    stores(gate); \
    int result = call; \
    if (!result) line(gate, sync_kind(fd, kind), fd, 0, 0, path, "", 0, 0, 0); \
    leave(gate); \
    return result;
int fsync(int fd) { SYNC("fsync", REAL(fsync)(fd)) }
int fdatasync(int fd) { SYNC("fdatasync", REAL(fdatasync)(fd)) }

/* --- mappings ---------------------------------------------------------------------------------------------------- */

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t position) {
    char path[4096];
    void *start = REAL(mmap)(address, size, protection, flags, fd, position);
    if (start == MAP_FAILED || fd < 0 || !(flags & MAP_SHARED) || !(protection & PROT_WRITE) || !path_of(fd, path))
        return start;
    int gate = enter();
    struct map *map = maps;
    while (map < maps + MAPS_MAX && map->start) map++;
    struct stat found;
    if (map == maps + MAPS_MAX || position || fstat(fd, &found)) abort();
    stores(gate);
    *map = (struct map){start, size, fcntl(fd, F_DUPFD_CLOEXEC, 0), calloc(1, size)};
    memcpy(map->seen, start, size < (size_t)found.st_size ? size : (size_t)found.st_size);
    leave(gate);
    return start;
}
void *mmap64(void *address, size_t size, int protection, int flags, int fd, off_t position) {
    return mmap(address, size, protection, flags, fd, position);
}
static struct map *mapped(void *start) {
    for (struct map *map = maps; map < maps + MAPS_MAX; map++)
        if (map->start && map->start == start) return map;
    return 0;
}
int munmap(void *start, size_t size) {
    if (start && mapped(start)) {
        int gate = enter();
        struct map *map = mapped(start);
        stores(gate);
        REAL(close)(map->fd);
        free(map->seen);
        map->start = 0;
        leave(gate);
    }
    return REAL(munmap)(start, size);
}
int msync(void *start, size_t size, int flags) {
    struct map *map = mapped(start);
    if (!map) return REAL(msync)(start, size, flags);
    int fd = map->fd;
    SYNC("sync_mapping", REAL(msync)(start, size, flags))
}

/* --- names ------------------------------------------------------------------------------------------------------- */

#define NAMED(kind, path, target, call) \
    if (!root || strncmp(path, root, strlen(root))) return call; \
    int gate = enter(); \
    int result = call; \
    if (!result) { stores(gate); line(gate, kind, -1, 0, 0, path, target, 0, 0, 0); } \
    leave(gate); \
    return result;

int rename(const char *path, const char *target) { NAMED("rename", path, target, REAL(rename)(path, target)) }
int unlink(const char *path) { NAMED("unlink", path, "", REAL(unlink)(path)) }
int mkdir(const char *path, mode_t mode) { NAMED("mkdir", path, "", REAL(mkdir)(path, mode)) }
int rmdir(const char *path) { NAMED("rmdir", path, "", REAL(rmdir)(path)) }
