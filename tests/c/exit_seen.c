/* What is seen of a large process's end at once: exit_seen MODE. Needs exit=detached and an exit_threshold that the children
 * reach (32M). A last word `alone`: there is no helper to be found, the check alone is tried.
 *   seen MS       1 GiB: the parent's wait returns within MS of the signal, the best of several
 *   port          a listening socket can be bound again at once
 *   pipe          a pipe's reader sees its end at once
 *   flock         a lock on a descriptor is free at once, one on a mapped file within 5 ms */
#include "exit.h"
#include <arpa/inet.h>
#include <sys/file.h>
#include <sys/socket.h>

/* What a child has beside memory. */
static void hold(const char *with)
{
    if (!strncmp(with, "port:", 5)) {
        struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(with + 5)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int s = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(s >= 0 && !bind(s, (void *)&here, sizeof here) && !listen(s, 1));
    }
    if (!strncmp(with, "lock:", 5)) {
        int f = open(with + 5, O_RDWR);
        CHECK(f >= 0 && !flock(f, LOCK_EX | LOCK_NB));
    }
    if (!strncmp(with, "map:", 4)) {
        int f = open(with + 4, O_RDWR);
        CHECK(f >= 0 && !flock(f, LOCK_EX | LOCK_NB));
        char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
        CHECK(p != MAP_FAILED);
        *p = 1;
        close(f);
    }
}

static int child(char **a)
{
    /* Before there is a helper: it must not keep a copy. */
    hold(a[7]);
    return plain_child(a);
}

/* Seconds from the signal to the wait's return, the best of several. */
static double best_seen(int wants)
{
    double best = 1e9;
    for (int i = 0; i < (wants ? 6 : 2); i++) {
        struct plan plan = {"kill", 1024, 0, 0, 0, NULL};
        struct child c = start(&plan, wants, -1);
        usleep(20000);
        double began = now();
        end_child(&c, "kill");
        int status = wait_for(&c);
        double took = now() - began;
        CHECK(fits("kill", status));
        if (took < best) best = took;
        end_of(&c);
        if (best < 0.001) break;
    }
    printf("best %.2f ms\n", best * 1e3);
    return best;
}

static int bind_to(int port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (void *)&here, size) || listen(s, 1)) { close(s); return -1; }
    CHECK(!getsockname(s, (void *)&here, &size));
    close(s);
    return ntohs(here.sin_port);
}

static int port(int wants)
{
    for (int i = 0; i < 4; i++) {
        char with[32];
        int number = bind_to(0);
        CHECK(number > 0);
        snprintf(with, sizeof with, "port:%d", number);
        struct plan plan = {i % 2 ? "exit" : "kill", 256, 0, 0, 0, with};
        struct child c = start(&plan, wants, -1);
        CHECK(bind_to(number) < 0);
        end_child(&c, plan.way);
        wait_for(&c);
        CHECK(bind_to(number) == number, "port %d is still taken", number);
        end_of(&c);
    }
    return passed();
}

/* The child's descriptor 3 is the pipe. */
static int pipe_end(int wants)
{
    double best = 1e9;
    for (int i = 0; i < (wants ? 6 : 2); i++) {
        struct plan plan = {i % 2 ? "exit" : "kill", 256, 0, 0, 0, NULL};
        struct child c = start(&plan, wants, -1);
        char byte;
        double began = now();
        end_child(&c, plan.way);
        CHECK(read(c.says, &byte, 1) == 0);
        if (now() - began < best) best = now() - began;
        wait_for(&c);
        end_of(&c);
    }
    printf("best %.2f ms\n", best * 1e3);
    CHECK(best < 0.005, "%.2f ms", best * 1e3);
    return passed();
}

/* Seconds until the lock is free, from the wait's return on. */
static double lock_free(const char *kind, const char *file, int wants)
{
    char with[300];
    snprintf(with, sizeof with, "%s:%s", kind, file);
    struct plan plan = {"kill", 256, 0, 0, 0, with};
    struct child c = start(&plan, wants, -1);
    int f = open(file, O_RDWR | O_CLOEXEC);
    CHECK(f >= 0 && flock(f, LOCK_EX | LOCK_NB) < 0, "the child has no lock");
    end_child(&c, "kill");
    wait_for(&c);
    double began = now();
    while (flock(f, LOCK_EX | LOCK_NB)) {
        CHECK(now() - began < 5, "%s: not free after 5 s", kind);
        sched_yield();
    }
    double took = now() - began;
    close(f);
    end_of(&c);
    return took;
}

static int locks(int wants)
{
    char file[] = "/tmp/ebbtide-exit-XXXXXX";
    int f = mkstemp(file);
    CHECK(f >= 0 && !ftruncate(f, PAGE));
    close(f);
    double plain = 1e9, mapped = 1e9;
    for (int i = 0; i < 4; i++) {
        double a = lock_free("lock", file, wants), b = lock_free("map", file, wants);
        if (a < plain) plain = a;
        if (b < mapped) mapped = b;
        /* Nobody is a second late by chance. */
        if (a > 1 && b > 1) break;
    }
    unlink(file);
    printf("plain %.3f ms, mapped %.2f ms\n", plain * 1e3, mapped * 1e3);
    CHECK(plain < 0.0005 && mapped < 0.005);
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    int wants = wants_helper(argc, argv);
    if (is(mode, "child")) return child(argv);
    if (is(mode, "seen")) { CHECK(best_seen(wants) * 1e3 < atof(argv[2])); return passed(); }
    if (is(mode, "port")) return port(wants);
    if (is(mode, "pipe")) return pipe_end(wants);
    if (is(mode, "flock")) return locks(wants);
    CHECK(0, "exit_seen MODE");
}
