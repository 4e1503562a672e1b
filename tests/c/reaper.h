/* Helpers of programs, as seen from outside. */
#pragma once
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>

/* The helper of a process, or 0. Allocates nothing: a large process would make one. */
static pid_t helper_of(pid_t parent)
{
    char entries[4096] __attribute__((aligned(8)));
    pid_t found = 0;
    ssize_t length;
    int dir = open("/proc", O_RDONLY | O_DIRECTORY);
    CHECK(dir >= 0);
    while ((length = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0) {
        for (char *at = entries; at < entries + length; at += ((struct dirent64 *)at)->d_reclen) {
            char path[300], text[512];
            int pid = atoi(((struct dirent64 *)at)->d_name), ppid = 0;
            if (pid <= 0) continue;
            snprintf(path, sizeof path, "/proc/%d/stat", pid);
            int fd = open(path, O_RDONLY);
            if (fd < 0) continue;
            ssize_t n = read(fd, text, sizeof text - 1);
            close(fd);
            if (n <= 0) continue;
            text[n] = 0;
            char *behind = strrchr(text, ')'), state = 0;
            if (!behind || sscanf(behind, ") %c %d", &state, &ppid) != 2) continue;
            if (strstr(text, "(ebbtide/exit)") && ppid == parent && state != 'Z') found = pid;
        }
    }
    CHECK(length == 0);
    close(dir);
    return found;
}

static pid_t wait_for_helper(pid_t parent)
{
    for (int i = 0; i < 2000; i++) {
        pid_t helper = helper_of(parent);
        if (helper) return helper;
        usleep(1000);
    }
    CHECK(0, "%d has no helper", (int)parent);
    return 0;
}

/* Whether a process has memory: not any more as a zombie, which its new parent may leave for long. */
static int has_memory(pid_t pid)
{
    char path[64], text[64] = "0";
    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    int fd = open(path, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    return n > 0 && strtoul(text, NULL, 10) > 0;
}

/* Seconds until a process is gone. */
static double wait_gone(pid_t pid, double most)
{
    double start = now();
    while (now() - start < most) {
        if (!has_memory(pid)) return now() - start;
        usleep(500);
    }
    CHECK(0, "%d is still there after %.1f s", (int)pid, most);
    return most;
}
