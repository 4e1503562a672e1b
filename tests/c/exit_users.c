/* Helpers of other users' processes: exit_users MODE. Needs root, exit=detached, exit_threshold=32M.
 *   nproc UID        a plain user with RLIMIT_NPROC: no helper to be had, the end is as ever
 *   users UID UID    two users at once
 *   user UID         a plain user */
#include "exit.h"
#include <grp.h>

/* Runs a check as a user, in a process of its own. */
static pid_t as_user(uid_t uid, int processes, void (*check)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid) return pid;
    if (processes) {
        struct rlimit limit = {processes, processes};
        CHECK(!setrlimit(RLIMIT_NPROC, &limit));
    }
    CHECK(!setgroups(0, NULL) && !setgid(uid) && !setuid(uid));
    check();
    _exit(0);
}

static void refused(void)
{
    hold_memory(48);
    usleep(300000);
    CHECK(!helper_of(getpid()));
    churn(1, 2000, 100, 16);
}

static void served(void)
{
    for (int i = 0; i < 4; i++) {
        struct plan plan = {"kill", 64, 0, 0, 0, NULL};
        struct child c = start(&plan, 1, -1);
        end_child(&c, "kill");
        CHECK(fits("kill", wait_for(&c)));
        end_of(&c);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "child")) return plain_child(argv);
    CHECK(argc > 2, "exit_users MODE UID");
    uid_t uid = atoi(argv[2]);
    if (is(mode, "nproc")) {
        must_end_well(as_user(uid, 1, refused));
        must_end_well(as_user(uid, 50, served));
    } else if (is(mode, "user")) {
        must_end_well(as_user(uid, 0, served));
    } else {
        CHECK(is(mode, "users") && argc > 3, "exit_users MODE UID");
        pid_t one = as_user(uid, 0, served), two = as_user(atoi(argv[3]), 0, served);
        must_end_well(one);
        must_end_well(two);
    }
    return passed();
}
