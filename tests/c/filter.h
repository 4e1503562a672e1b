/* Filters for system calls (seccomp). */
#pragma once
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

/* What every filter needs. The library's `prctl` notices it, and ends its workers. */
static inline void promise(void) { CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); }

/* The same by the number of the call, which the library does not see. */
static inline void promise_unseen(void) { CHECK(!syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); }

/* Installs a filter for this thread, for all with SECCOMP_FILTER_FLAG_TSYNC. The library does not see it. */
static inline void install(struct sock_filter *code, size_t count, unsigned flags)
{
    struct sock_fprog program = {count, code};
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program));
}

/* From now on these system calls, up to -1, get this answer. */
static inline void answer_calls(const int *calls, unsigned answer, unsigned flags)
{
    struct sock_filter code[34];
    int n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (; *calls >= 0; calls++) {
        CHECK(n < 32, "too many calls");
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *calls, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    CHECK(n > 1, "no call");
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    install(code, n, flags);
}

/* The same for one call. */
static inline void answer_call(int call, unsigned answer) { answer_calls((int[]){call, -1}, answer, 0); }
