/* Finds the helper of a process (exit=detached) from another process. Nothing here allocates: a large process would
 * make a helper of its own. */
#pragma once
#include "process.h"

/* State of a process by its stat: a letter, or 0 when it is gone. */
static inline char state_of(pid_t pid)
{
    char text[512];
    read_text(text, sizeof text, "/proc/%d/stat", (int)pid);
    char *behind = strrchr(text, ')');
    return behind ? behind[2] : 0;
}

/* The helper of a process, or 0. */
static inline pid_t helper_of(pid_t parent)
{
    char text[512], state;
    int ppid;
    pid_t found = 0;
    struct numbers all = numbers_of("/proc");
    CHECK(all.dir >= 0);
    for (int pid; (pid = next_number(&all));) {
        read_text(text, sizeof text, "/proc/%d/stat", pid);
        char *behind = strrchr(text, ')');
        if (!behind || sscanf(behind, ") %c %d", &state, &ppid) != 2) continue;
        if (strstr(text, "(ebbtide/exit)") && ppid == parent && state != 'Z') found = pid;
    }
    return found;
}

/* Seconds to wait for what should come or go. Beside a busy loop on each CPU, a helper of 1 GiB has taken 17. */
static inline double patience(void)
{
    const char *given = getenv("EXIT_PATIENCE");
    return given ? atof(given) : 40;
}

/* Waits for it; 0 if none comes. */
static inline pid_t await_helper(pid_t parent, double seconds)
{
    for (double start = now(); now() - start < seconds; usleep(500)) {
        pid_t helper = helper_of(parent);
        if (helper) return helper;
    }
    return 0;
}

static inline pid_t must_have_helper(pid_t parent)
{
#ifndef __GLIBC__
    exit(skipped("exit=detached has no helper with this libc"));
#endif
    pid_t helper = await_helper(parent, 10);
    CHECK(helper, "%d has no helper", (int)parent);
    return helper;
}

/* Whether a process is gone. A zombie holds nothing, and its new parent may leave it for long. */
static inline int is_gone(pid_t pid)
{
    char state = state_of(pid);
    return !state || state == 'Z';
}

/* Seconds until a process is gone. */
static inline double await_gone(pid_t pid, double most)
{
    double start = now();
    for (; !is_gone(pid); usleep(300)) CHECK(now() - start < most, "%d is still there after %.1f s", (int)pid, most);
    return now() - start;
}

/* The file in which the helpers of a user take turns. */
static inline int open_slots(void)
{
    char path[300];
    CHECK(getenv("XDG_RUNTIME_DIR"), "no XDG_RUNTIME_DIR");
    snprintf(path, sizeof path, "%s/ebbtide-exit.lock", getenv("XDG_RUNTIME_DIR"));
    int slots = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(slots >= 0);
    return slots;
}

/* All slots, as if this user's other helpers had them. */
static inline int take_slots(void)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int slots = open_slots();
    /* A helper's last thread may have it a moment longer. */
    for (double began = now(); fcntl(slots, F_OFD_SETLK, &all); usleep(1000))
        CHECK(errno == EAGAIN && now() - began < patience(), "a slot is taken");
    return slots;
}
