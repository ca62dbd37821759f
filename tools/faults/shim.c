/* LD_PRELOAD shim: remembers what a power loss would undo, and makes file operations fail, wait or stall.
 *
 * in:  FLINT_FAULT_DIR   directory (resolved) whose files are watched, SQLite's -shm files excepted (they are rebuilt)
 *      FLINT_FAULT_LOG   the shared file made by tools/faults/shim.py: control words, table of files, undo records
 *      FLINT_FAULT_SIDE  directory on the same file system that keeps hard links of unlinked and replaced files
 * out: undo records in the shared file; it is mapped, so that it survives SIGKILL, and read by tools/faults/power_loss.py.
 *
 * I1  The undo record is complete before the real call is made: killed in between, undoing it changes nothing.
 * I2  A sync covers what was written before it began, not what came meanwhile. A failed sync covers nothing, ever (fsyncgate).
 * I3  A create, unlink or rename is not durable until its directory was synced after it.
 * I5  A sync that was told to lie (lie_mask) returns success and covers nothing.
 * I4  When nothing is unsynced the record area starts again at its beginning; when it is full, `overflow` says so.
 */
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
#include <time.h>
#include <unistd.h>

#define MAGIC 0x31484d5453544c46ULL
#define FILES 4096
#define SECTOR 512
#define FDS 65536

enum { OP_PWRITE, OP_SYNC, OP_RENAME, OP_CREATE, OP_FALLOCATE, OP_UNLINK, OP_TRUNCATE, OP_DIRSYNC, OPS };
enum { R_WRITE = 1, R_SYNC, R_POISON, R_SIZE, R_CREATE, R_UNLINK, R_RENAME };

typedef struct {
    uint64_t ino, id, last, synced;
    char name[96];
} file_t;

typedef struct {
    uint64_t magic, size, first, tail, seq, next_id;
    uint32_t overflow, poisoned;
    /* control, written by the campaign at any time */
    uint32_t delay_min_us, delay_max_us, stall_ms, record;
    uint32_t fail_mask;
    int32_t fail_errno;
    uint32_t fail_forever, fail_short;
    int64_t fail_after;
    char fail_suffix[32];
    char lie_suffix[32];
    uint32_t lie_mask, unused;
    char stall_prefix[32], stall_suffix[32];
    char failed_name[96]; /* of the first operation that was made to fail */
    /* counters, read by the campaign */
    uint64_t count[OPS], failed[OPS], bytes;
    file_t files[FILES];
} shared_t;

typedef struct {
    uint32_t length, kind;
    uint64_t seq, file, offset, extent, old_size;
    uint32_t data, path2;
} record_t;

static shared_t *S;
static char root[PATH_MAX], side[PATH_MAX];
static size_t root_len;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int fd_file[FDS]; /* 0: not looked at yet, -1: not ours, else index of files + 1 */
static __thread unsigned random_state;

#define REAL(name) ((__typeof__(name) *)real_(#name))
static void *real_(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (!found) abort();
    return found;
}
#define CALL(name) ({ static __typeof__(name) *f_; if (!f_) f_ = REAL(name); f_; })

__attribute__((constructor)) static void begin(void) {
    const char *dir = getenv("FLINT_FAULT_DIR"), *log = getenv("FLINT_FAULT_LOG"), *aside = getenv("FLINT_FAULT_SIDE");
    if (!dir || !log || S) return;
    int fd = CALL(open)(log, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0) { fprintf(stderr, "fault shim: %s: %s\n", log, strerror(errno)); _exit(127); }
    shared_t *map = mmap(NULL, st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CALL(close)(fd);
    if (map == MAP_FAILED || map->magic != MAGIC || map->first < sizeof(shared_t)) { fprintf(stderr, "fault shim: bad %s\n", log); _exit(127); }
    snprintf(root, sizeof root, "%s", dir);
    snprintf(side, sizeof side, "%s", aside ? aside : "");
    root_len = strlen(root);
    S = map;
}

/* --- which file ------------------------------------------------------------------------------------------------------ */
static int ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    return a >= b && memcmp(text + a - b, end, b) == 0;
}

static int ours(const char *path) {
    return S && strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || !path[root_len]) && !ends_with(path, "-shm");
}

static int absolute(int dirfd, const char *path, char out[PATH_MAX]) {
    if (path[0] == '/') return snprintf(out, PATH_MAX, "%s", path) < PATH_MAX;
    char base[PATH_MAX], link[64];
    if (dirfd == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", dirfd);
        ssize_t n = readlink(link, base, sizeof base - 1);
        if (n <= 0) return 0;
        base[n] = 0;
    }
    return snprintf(out, PATH_MAX, "%s/%s", base, path) < PATH_MAX;
}

/* Index of the file in the table, -1 when the table is full. The lock is held. */
static int table(uint64_t ino, const char *path, int fresh) {
    const char *name = strlen(path) > root_len ? path + root_len + 1 : ".";
    for (uint64_t i = 0; i < FILES; i++) {
        int at = (int)((ino + i) % FILES);
        file_t *f = &S->files[at];
        if (f->ino && f->ino != ino) continue;
        if (!f->ino || fresh) {
            f->last = f->synced = 0;
            f->id = ++S->next_id;
            snprintf(f->name, sizeof f->name, "%s", name);
            f->ino = ino;
        }
        return at;
    }
    S->overflow = 1;
    return -1;
}

static int file_of(int fd) {
    if (!S || fd < 0 || fd >= FDS) return -1;
    if (fd_file[fd]) return fd_file[fd] < 0 ? -1 : fd_file[fd] - 1;
    char link[64], path[PATH_MAX];
    struct stat st;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    int at = -1;
    if (n > 0) {
        path[n] = 0;
        if (ours(path) && fstat(fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
            pthread_mutex_lock(&lock);
            at = table(st.st_ino, path, 0);
            pthread_mutex_unlock(&lock);
        }
    }
    fd_file[fd] = at < 0 ? -1 : at + 1;
    return at;
}

static int directory_of(const char *path) {
    char dir[PATH_MAX];
    struct stat st;
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (!slash) return -1;
    *slash = 0;
    return stat(dir, &st) == 0 ? table(st.st_ino, dir, 0) : -1;
}

/* --- records (lock held) ---------------------------------------------------------------------------------------------- */
static record_t *room(uint32_t payload) {
    uint64_t need = (sizeof(record_t) + payload + 7) & ~7ULL;
    if (S->tail + need > S->size) { S->overflow = 1; return NULL; }
    record_t *r = (record_t *)((char *)S + S->tail);
    memset(r, 0, sizeof *r);
    r->length = (uint32_t)need;
    return r;
}

static void done(record_t *r, int kind, int at, uint64_t seq) {
    r->kind = kind;
    r->seq = seq;
    r->file = S->files[at].id;
    __atomic_store_n(&S->tail, S->tail + r->length, __ATOMIC_RELEASE);
}

/* The old content of the sectors under [offset, offset + length). Returns the sequence number. */
static uint64_t remember(int fd, int at, uint64_t offset, uint64_t length) {
    uint64_t seq = ++S->seq;
    struct stat st;
    if (!S->record || fstat(fd, &st) != 0) return seq;
    uint64_t from = offset / SECTOR * SECTOR, to = (offset + length + SECTOR - 1) / SECTOR * SECTOR, size = (uint64_t)st.st_size;
    uint64_t old = from >= size ? 0 : (to < size ? to : size) - from;
    record_t *r = room((uint32_t)old);
    if (!r) return seq;
    char path[64];
    int reader = fd, flags = fcntl(fd, F_GETFL);
    if ((flags & O_ACCMODE) == O_WRONLY || flags & O_DIRECT) { /* what is written around the page cache is read through it */
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        reader = CALL(open)(path, O_RDONLY | O_CLOEXEC);
    }
    uint64_t got = 0;
    while (got < old) {
        ssize_t n = pread(reader, (char *)(r + 1) + got, old - got, (off_t)(from + got));
        if (n <= 0) { S->overflow = 1; break; }
        got += (uint64_t)n;
    }
    if (reader != fd) CALL(close)(reader);
    r->data = (uint32_t)old;
    r->offset = offset;
    r->extent = length;
    r->old_size = size;
    S->files[at].last = seq;
    done(r, R_WRITE, at, seq);
    return seq;
}

static void size_changes(int fd, int at, uint64_t to) {
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size == to) return;
    if (to < (uint64_t)st.st_size) { remember(fd, at, to, (uint64_t)st.st_size - to); }
    uint64_t seq = ++S->seq;
    record_t *r = S->record ? room(0) : NULL;
    if (!r) return;
    r->offset = to;
    r->old_size = (uint64_t)st.st_size;
    S->files[at].last = seq;
    done(r, R_SIZE, at, seq);
}

/* A change of a directory: what it was called, and for a rename its old name; a hard link of what would be lost goes aside. */
static void entry_changes(int kind, const char *path, const char *from) {
    int at = directory_of(path);
    if (at < 0) return;
    uint64_t seq = ++S->seq;
    uint32_t a = (uint32_t)strlen(path) + 1, b = from ? (uint32_t)strlen(from) + 1 : 0;
    if (!S->record) return;
    if (kind != R_CREATE && side[0]) {
        char kept[PATH_MAX + 32];
        snprintf(kept, sizeof kept, "%s/%llu", side, (unsigned long long)seq);
        if (link(path, kept) != 0 && errno != ENOENT) S->overflow = 1;
    }
    record_t *r = room(a + b);
    if (!r) return;
    memcpy(r + 1, path, a);
    if (from) memcpy((char *)(r + 1) + a, from, b);
    r->data = a;
    r->path2 = b;
    S->files[at].last = seq;
    done(r, kind, at, seq);
}

static void synced(int at, uint64_t upto, int ok) {
    if (!S->record) return;
    record_t *r = room(0);
    if (!r) return;
    r->offset = upto;
    done(r, ok ? R_SYNC : R_POISON, at, ++S->seq);
    if (!ok) { S->poisoned = 1; return; }
    if (upto > S->files[at].synced) S->files[at].synced = upto;
    if (S->poisoned) return;
    for (int i = 0; i < FILES; i++)
        if (S->files[i].ino && S->files[i].last > S->files[i].synced) return;
    __atomic_store_n(&S->tail, S->first, __ATOMIC_RELEASE); /* I4 */
}

/* --- faults ----------------------------------------------------------------------------------------------------------- */
static int fails(int op, const char *name) {
    __atomic_add_fetch(&S->count[op], 1, __ATOMIC_RELAXED);
    if (!(S->fail_mask >> op & 1) || !ends_with(name, S->fail_suffix)) return 0;
    int64_t left = __atomic_sub_fetch(&S->fail_after, 1, __ATOMIC_SEQ_CST);
    if (left >= 0 || (left < -1 && !S->fail_forever)) return 0;
    if (__atomic_fetch_add(&S->failed[op], 1, __ATOMIC_RELAXED) == 0 && !S->failed_name[0])
        snprintf(S->failed_name, sizeof S->failed_name, "%s", strlen(name) > root_len && name[0] == '/' ? name + root_len + 1 : name);
    return S->fail_errno;
}

static void waits(const char *name) {
    uint32_t least = S->delay_min_us, most = S->delay_max_us, stall = 0;
    if (strncmp(name, S->stall_prefix, strlen(S->stall_prefix)) == 0 && ends_with(name, S->stall_suffix))
        stall = __atomic_exchange_n(&S->stall_ms, 0, __ATOMIC_SEQ_CST);
    uint64_t us = (uint64_t)stall * 1000;
    if (most) us += least + (most > least ? (uint64_t)rand_r(&random_state) % (most - least + 1) : 0);
    if (!us) return;
    struct timespec t = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    while (nanosleep(&t, &t) != 0 && errno == EINTR) {}
}

#define FAIL(code) do { errno = (code); return -1; } while (0)

/* --- writes ----------------------------------------------------------------------------------------------------------- */
static off_t position(int fd) {
    return fcntl(fd, F_GETFL) & O_APPEND ? lseek(fd, 0, SEEK_END) : lseek(fd, 0, SEEK_CUR);
}

static ssize_t do_write(int fd, int at, const void *data, size_t size, off_t offset, int with_offset) {
    int code = fails(OP_PWRITE, S->files[at].name);
    if (code && !(S->fail_short && size > 1)) FAIL(code);
    if (code) { S->fail_short = 0; size /= 2; }
    pthread_mutex_lock(&lock);
    remember(fd, at, (uint64_t)offset, size);
    S->bytes += size;
    ssize_t n = with_offset ? CALL(pwrite)(fd, data, size, offset) : CALL(write)(fd, data, size);
    pthread_mutex_unlock(&lock);
    return n;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    int at = file_of(fd);
    return at < 0 ? CALL(pwrite)(fd, data, size, offset) : do_write(fd, at, data, size, offset, 1);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return pwrite(fd, data, size, offset); }

ssize_t write(int fd, const void *data, size_t size) {
    int at = file_of(fd);
    return at < 0 ? CALL(write)(fd, data, size) : do_write(fd, at, data, size, position(fd), 0);
}

static ssize_t do_writev(int fd, int at, const struct iovec *parts, int count, off_t offset) {
    size_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    int code = fails(OP_PWRITE, S->files[at].name);
    if (code && !S->fail_short) FAIL(code);
    if (code) { S->fail_short = 0; count = 1; total = parts[0].iov_len; }
    pthread_mutex_lock(&lock);
    remember(fd, at, (uint64_t)(offset < 0 ? position(fd) : offset), total);
    S->bytes += total;
    ssize_t n = offset < 0 ? CALL(writev)(fd, parts, count) : CALL(pwritev)(fd, parts, count, offset);
    pthread_mutex_unlock(&lock);
    return n;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    int at = file_of(fd);
    return at < 0 ? CALL(writev)(fd, parts, count) : do_writev(fd, at, parts, count, -1);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    int at = file_of(fd);
    return at < 0 ? CALL(pwritev)(fd, parts, count, offset) : do_writev(fd, at, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) { return pwritev(fd, parts, count, offset); }

static int truncate_fd(int fd, off_t to) {
    int at = file_of(fd);
    if (at < 0) return CALL(ftruncate)(fd, to);
    int code = fails(OP_TRUNCATE, S->files[at].name);
    if (code) FAIL(code);
    pthread_mutex_lock(&lock);
    size_changes(fd, at, (uint64_t)to);
    int r = CALL(ftruncate)(fd, to);
    pthread_mutex_unlock(&lock);
    return r;
}
int ftruncate(int fd, off_t to) { return truncate_fd(fd, to); }
int ftruncate64(int fd, off64_t to) { return truncate_fd(fd, to); }

static int grows(int fd, int at, off_t end) {
    struct stat st;
    int code = fails(OP_FALLOCATE, S->files[at].name);
    if (code) return code;
    if (fstat(fd, &st) == 0 && end > st.st_size) size_changes(fd, at, (uint64_t)end);
    return 0;
}

int posix_fallocate(int fd, off_t offset, off_t length) {
    int at = file_of(fd), code;
    if (at < 0) return CALL(posix_fallocate)(fd, offset, length);
    pthread_mutex_lock(&lock);
    code = grows(fd, at, offset + length);
    if (!code) code = CALL(posix_fallocate)(fd, offset, length);
    pthread_mutex_unlock(&lock);
    return code;
}
int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
    int at = file_of(fd);
    if (at < 0) return CALL(fallocate)(fd, mode, offset, length);
    pthread_mutex_lock(&lock);
    int code = mode & FALLOC_FL_KEEP_SIZE ? 0 : grows(fd, at, offset + length);
    if (mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) remember(fd, at, (uint64_t)offset, (uint64_t)length);
    int r = code ? -1 : CALL(fallocate)(fd, mode, offset, length);
    pthread_mutex_unlock(&lock);
    if (code) errno = code;
    return r;
}
int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }

/* --- syncs ------------------------------------------------------------------------------------------------------------ */
static int do_sync(int fd, int at, int (*call)(int)) {
    struct stat st;
    int dir = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode);
    pthread_mutex_lock(&lock);
    uint64_t upto = S->seq;
    pthread_mutex_unlock(&lock);
    if (!dir) waits(S->files[at].name);
    int code = fails(dir ? OP_DIRSYNC : OP_SYNC, S->files[at].name);
    /* a disk (or a program) that says "synced" and did nothing: the negative test of every campaign with power loss */
    if (!code && S->lie_mask >> (dir ? OP_DIRSYNC : OP_SYNC) & 1 && ends_with(S->files[at].name, S->lie_suffix)) return 0;
    int r = code ? -1 : call(fd);
    int saved = code ? code : errno;
    pthread_mutex_lock(&lock);
    synced(at, upto, r == 0);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return r;
}

int fsync(int fd) {
    int at = file_of(fd);
    return at < 0 ? CALL(fsync)(fd) : do_sync(fd, at, CALL(fsync));
}

int fdatasync(int fd) {
    int at = file_of(fd);
    return at < 0 ? CALL(fdatasync)(fd) : do_sync(fd, at, CALL(fdatasync));
}

/* --- names ------------------------------------------------------------------------------------------------------------ */
static int do_open(int dirfd, const char *path, int flags, mode_t mode) {
    char full[PATH_MAX];
    struct stat st;
    int fd, mine = S && (flags & (O_CREAT | O_TRUNC)) && !(flags & O_TMPFILE & ~O_DIRECTORY) && absolute(dirfd, path, full) && ours(full);
    if (!mine) {
        fd = CALL(openat)(dirfd, path, flags, mode);
        if (fd >= 0 && fd < FDS) fd_file[fd] = 0;
        return fd;
    }
    int there = stat(full, &st) == 0;
    if (!there) {
        int code = fails(OP_CREATE, full);
        if (code) FAIL(code);
    }
    pthread_mutex_lock(&lock);
    if (there && flags & O_TRUNC && st.st_size) {
        int old = CALL(open)(full, O_RDWR | O_CLOEXEC);
        if (old >= 0) { size_changes(old, table(st.st_ino, full, 0), 0); CALL(close)(old); }
    }
    if (!there) entry_changes(R_CREATE, full, NULL);
    fd = CALL(openat)(dirfd, path, flags, mode);
    if (fd >= 0 && fd < FDS) {
        fd_file[fd] = 0;
        if (!there && fstat(fd, &st) == 0) fd_file[fd] = table(st.st_ino, full, 1) + 1;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE(flags) ({ mode_t m_ = 0; if ((flags) & (O_CREAT | O_TMPFILE)) { va_list l_; va_start(l_, flags); m_ = va_arg(l_, mode_t); va_end(l_); } m_; })
int open(const char *path, int flags, ...) { return do_open(AT_FDCWD, path, flags, MODE(flags)); }
int open64(const char *path, int flags, ...) { return do_open(AT_FDCWD, path, flags | O_LARGEFILE, MODE(flags)); }
int openat(int dirfd, const char *path, int flags, ...) { return do_open(dirfd, path, flags, MODE(flags)); }
int openat64(int dirfd, const char *path, int flags, ...) { return do_open(dirfd, path, flags | O_LARGEFILE, MODE(flags)); }

int close(int fd) {
    if (fd >= 0 && fd < FDS) fd_file[fd] = 0;
    return CALL(close)(fd);
}

static int do_unlink(int dirfd, const char *path, int flags) {
    char full[PATH_MAX];
    if (!S || flags & AT_REMOVEDIR || !absolute(dirfd, path, full) || !ours(full)) return CALL(unlinkat)(dirfd, path, flags);
    int code = fails(OP_UNLINK, full);
    if (code) FAIL(code);
    pthread_mutex_lock(&lock);
    if (access(full, F_OK) == 0) entry_changes(R_UNLINK, full, NULL);
    int r = CALL(unlinkat)(dirfd, path, flags);
    pthread_mutex_unlock(&lock);
    return r;
}
int unlink(const char *path) { return do_unlink(AT_FDCWD, path, 0); }
int unlinkat(int dirfd, const char *path, int flags) { return do_unlink(dirfd, path, flags); }

static int do_rename(int dir1, const char *from, int dir2, const char *to) {
    char a[PATH_MAX], b[PATH_MAX];
    if (!S || !absolute(dir1, from, a) || !absolute(dir2, to, b) || !ours(b)) return CALL(renameat)(dir1, from, dir2, to);
    int code = fails(OP_RENAME, b);
    if (code) FAIL(code);
    pthread_mutex_lock(&lock);
    entry_changes(R_RENAME, b, a);
    int r = CALL(renameat)(dir1, from, dir2, to), saved = errno, at;
    struct stat st;
    if (r == 0 && stat(b, &st) == 0 && (at = table(st.st_ino, b, 0)) >= 0)
        snprintf(S->files[at].name, sizeof S->files[at].name, "%s", b + root_len + 1);
    pthread_mutex_unlock(&lock);
    errno = saved;
    return r;
}
int rename(const char *from, const char *to) { return do_rename(AT_FDCWD, from, AT_FDCWD, to); }
int renameat(int dir1, const char *from, int dir2, const char *to) { return do_rename(dir1, from, dir2, to); }
