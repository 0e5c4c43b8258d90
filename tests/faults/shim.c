/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults on demand, for tests: LD_PRELOADed, it makes calls into libc fail as the environment says. (What goes
 * through io_uring does not pass here.)
 *
 *	FAULT=call:error:first:count[:match] ...   separated by blanks. The calls number `first` (from 1) to
 *	        first + count - 1 of `call` fail with `error` (ENOSPC, ...), or move one byte (short). `match` counts
 *	        only calls whose path, descriptor's path (readlink of /proc/self/fd) or ioctl's name has it in it.
 *	FAULT_PROGRAM=name     only in the program of that name
 *	FAULT_ARMED_BY=file    only while there is such a file
 *	FAULT_LOG=file         gets a line for each call that was made to fail
 *	FAULT_REALTIME_S=n     CLOCK_REALTIME is n seconds ahead
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/kvm.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MAX_FAULTS 8

struct fault {
	char call[24], match[64];
	int error; /* 0: short */
	int first, count;
	atomic_int seen;
};

static struct fault faults[MAX_FAULTS];
static int nr_faults;
static const char *log_path, *armed_by;
static long realtime_s;

static const struct {
	const char *name;
	int value;
} errors[] = { { "short", 0 },       { "ENOSPC", ENOSPC }, { "EIO", EIO },
	       { "ENOMEM", ENOMEM }, { "EINTR", EINTR },   { "EMFILE", EMFILE },
	       { "EAGAIN", EAGAIN }, { "EACCES", EACCES }, { "EFBIG", EFBIG } };

static const struct {
	unsigned long request;
	const char *name;
} requests[] = { { KVM_CREATE_VM, "KVM_CREATE_VM" },
	         { KVM_CREATE_VCPU, "KVM_CREATE_VCPU" },
	         { KVM_SET_USER_MEMORY_REGION, "KVM_SET_USER_MEMORY_REGION" },
	         { KVM_RUN, "KVM_RUN" } };

static int error_of(const char *name)
{
	for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (!strcmp(errors[i].name, name))
			return errors[i].value;
	fprintf(stderr, "shim: no error %s\n", name);
	abort();
}

static void parse(char *text)
{
	char *rest, *word;

	for (word = strtok_r(text, " ", &rest); word && nr_faults < MAX_FAULTS;
	     word = strtok_r(NULL, " ", &rest)) {
		struct fault *f = &faults[nr_faults++];
		char error[16];

		if (sscanf(word, "%23[^:]:%15[^:]:%d:%d:%63s", f->call, error, &f->first, &f->count,
		           f->match) < 4)
			abort();
		f->error = error_of(error);
	}
}

__attribute__((constructor)) static void begin(void)
{
	const char *program = getenv("FAULT_PROGRAM"), *spec = getenv("FAULT");
	const char *ahead = getenv("FAULT_REALTIME_S");
	char *copy = spec ? strdup(spec) : NULL;

	if (program && strcmp(program, program_invocation_short_name) != 0)
		return;
	log_path = getenv("FAULT_LOG");
	armed_by = getenv("FAULT_ARMED_BY");
	realtime_s = ahead ? atol(ahead) : 0;
	if (copy)
		parse(copy);
	free(copy);
}

static void tell(const struct fault *f, const char *what)
{
	char line[256];
	long fd;
	int n = snprintf(line, sizeof(line), "%s %s\n", f->call, what ? what : "-");

	if (!log_path)
		return;
	fd = syscall(SYS_openat, AT_FDCWD, log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC,
	             0644);
	if (fd < 0)
		return;
	syscall(SYS_write, fd, line, (size_t)n < sizeof(line) ? n : (int)sizeof(line));
	syscall(SYS_close, fd);
}

enum verdict { PASS, FAIL, SHORT };

/* The fault that strikes this call; errno is set for FAIL. `what` NULL: `fd` has the path. */
static enum verdict strike(const char *call, const char *what, int fd)
{
	for (int i = 0; i < nr_faults; i++) {
		struct fault *f = &faults[i];
		char link[32], path[256] = "";
		int nth;

		if (strcmp(f->call, call) != 0)
			continue;
		if (armed_by && syscall(SYS_faccessat, AT_FDCWD, armed_by, F_OK) < 0)
			continue;
		if (!what && fd >= 0) {
			long n;

			snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
			n = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof(path) - 1);
			path[n > 0 ? n : 0] = '\0';
			what = path;
		}
		if (f->match[0] && !(what && strstr(what, f->match)))
			continue;
		nth = atomic_fetch_add(&f->seen, 1) + 1;
		if (nth < f->first || nth - f->first >= f->count)
			continue;
		tell(f, what);
		errno = f->error;
		return f->error ? FAIL : SHORT;
	}
	return PASS;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int open(const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return strike("open", path, -1) == FAIL ? -1 : REAL(open)(path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...)
{
	va_list ap;
	mode_t mode;

	va_start(ap, flags);
	mode = va_arg(ap, mode_t);
	va_end(ap);
	return strike("open", path, -1) == FAIL ? -1 : REAL(openat)(dir, path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
	return strike("open", path, -1) == FAIL ? NULL : REAL(fopen)(path, mode);
}

int fflush(FILE *file)
{
	return strike("fflush", NULL, file ? fileno(file) : -1) == FAIL ? EOF : REAL(fflush)(file);
}

int mkdir(const char *path, mode_t mode)
{
	return strike("mkdir", path, -1) == FAIL ? -1 : REAL(mkdir)(path, mode);
}

int symlink(const char *to, const char *path)
{
	return strike("symlink", path, -1) == FAIL ? -1 : REAL(symlink)(to, path);
}

char *mkdtemp(char *template)
{
	return strike("mkdtemp", template, -1) == FAIL ? NULL : REAL(mkdtemp)(template);
}

ssize_t read(int fd, void *buf, size_t n)
{
	enum verdict v = strike("read", NULL, fd);

	return v == FAIL ? -1 : REAL(read)(fd, buf, v == SHORT && n ? 1 : n);
}

ssize_t __read_chk(int fd, void *buf, size_t n, size_t room);
ssize_t __read_chk(int fd, void *buf, size_t n, size_t room)
{
	if (n > room)
		abort();
	return read(fd, buf, n);
}

ssize_t pread(int fd, void *buf, size_t n, off_t off)
{
	enum verdict v = strike("pread", NULL, fd);

	return v == FAIL ? -1 : REAL(pread)(fd, buf, v == SHORT && n ? 1 : n, off);
}

ssize_t write(int fd, const void *buf, size_t n)
{
	enum verdict v = strike("write", NULL, fd);

	return v == FAIL ? -1 : REAL(write)(fd, buf, v == SHORT && n ? 1 : n);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t off)
{
	enum verdict v = strike("pwrite", NULL, fd);

	return v == FAIL ? -1 : REAL(pwrite)(fd, buf, v == SHORT && n ? 1 : n, off);
}

ssize_t copy_file_range(int in, off64_t *in_off, int out, off64_t *out_off, size_t n,
                        unsigned flags)
{
	enum verdict v = strike("copy_file_range", NULL, out);

	return v == FAIL ? -1
	                 : REAL(copy_file_range)(in, in_off, out, out_off, v == SHORT && n ? 1 : n,
	                                         flags);
}

int ftruncate(int fd, off_t n)
{
	return strike("ftruncate", NULL, fd) == FAIL ? -1 : REAL(ftruncate)(fd, n);
}

int fsync(int fd)
{
	return strike("fsync", NULL, fd) == FAIL ? -1 : REAL(fsync)(fd);
}

int syncfs(int fd)
{
	return strike("fsync", NULL, fd) == FAIL ? -1 : REAL(syncfs)(fd);
}

int rename(const char *from, const char *to)
{
	return strike("rename", to, -1) == FAIL ? -1 : REAL(rename)(from, to);
}

int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return strike("rename", to, -1) == FAIL ? -1 : REAL(renameat)(from_dir, from, to_dir, to);
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	return strike("rename", to, -1) == FAIL
	               ? -1
	               : REAL(renameat2)(from_dir, from, to_dir, to, flags);
}

void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t off)
{
	return strike("mmap", fd < 0 ? "anon" : NULL, fd) == FAIL
	               ? MAP_FAILED
	               : REAL(mmap)(at, n, prot, flags, fd, off);
}

int ioctl(int fd, unsigned long request, ...)
{
	const char *name = "";
	va_list ap;
	void *arg;

	va_start(ap, request);
	arg = va_arg(ap, void *);
	va_end(ap);
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++)
		if (requests[i].request == request)
			name = requests[i].name;
	return strike("ioctl", name, -1) == FAIL ? -1 : REAL(ioctl)(fd, request, arg);
}

int socket(int domain, int type, int protocol)
{
	return strike("socket", "", -1) == FAIL ? -1 : REAL(socket)(domain, type, protocol);
}

int socketpair(int domain, int type, int protocol, int pair[2])
{
	return strike("socket", "", -1) == FAIL ? -1
	                                        : REAL(socketpair)(domain, type, protocol, pair);
}

int eventfd(unsigned n, int flags)
{
	return strike("eventfd", "", -1) == FAIL ? -1 : REAL(eventfd)(n, flags);
}

int epoll_create1(int flags);
int epoll_create1(int flags)
{
	return strike("epoll_create1", "", -1) == FAIL ? -1 : REAL(epoll_create1)(flags);
}

int memfd_create(const char *name, unsigned flags)
{
	return strike("memfd_create", name, -1) == FAIL ? -1 : REAL(memfd_create)(name, flags);
}

ssize_t getrandom(void *buf, size_t n, unsigned flags);
ssize_t getrandom(void *buf, size_t n, unsigned flags)
{
	enum verdict v = strike("getrandom", "", -1);

	return v == FAIL ? -1 : REAL(getrandom)(buf, v == SHORT && n ? 1 : n, flags);
}

ssize_t recvmsg(int fd, struct msghdr *msg, int flags)
{
	return strike("recvmsg", NULL, fd) == FAIL ? -1 : REAL(recvmsg)(fd, msg, flags);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
	return strike("pthread_create", "", -1) == FAIL
	               ? errno
	               : REAL(pthread_create)(thread, attr, run, arg);
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attr, char *const argv[], char *const envp[])
{
	return strike("posix_spawn", path, -1) == FAIL
	               ? errno
	               : REAL(posix_spawn)(pid, path, actions, attr, argv, envp);
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	int ret = REAL(clock_gettime)(id, ts);

	if (id == CLOCK_REALTIME)
		ts->tv_sec += realtime_s;
	return ret;
}
