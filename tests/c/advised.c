/* A program advises or protects a large allocation and moves, shrinks or frees it: what is allocated there next is
 * ordinary memory. advised moved|refused|shrunk|freed|stuck wipe|dontfork|dontdump|none|read|part */
#include "filter.h"
#include <malloc.h>
#include <sys/mman.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#define MADV_KEEPONFORK 19
#endif

enum { BLOCKS = 160 };
static const size_t SIZE = 32 * MIB;
static char *blocks[BLOCKS];

/* What a program does to its own memory. */
static void advise(const char *what, char *p, size_t n)
{
    if (is(what, "wipe")) CHECK(!madvise(p, n, MADV_WIPEONFORK));
    else if (is(what, "dontfork")) CHECK(!madvise(p, n, MADV_DONTFORK));
    else if (is(what, "dontdump")) CHECK(!madvise(p, n, MADV_DONTDUMP));
    else if (is(what, "none")) CHECK(!mprotect(p, n, PROT_NONE));
    else if (is(what, "read")) CHECK(!mprotect(p, n, PROT_READ));
    else if (is(what, "part")) CHECK(!madvise(p + 8 * MIB, 8 * MIB, MADV_WIPEONFORK));
    else CHECK(0, "%s", what);
}

/* From now on no mapping can be replaced by another one. */
static void refuse_fixed(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MAP_FIXED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    promise();
    install(code, sizeof code / sizeof *code, 0);
}

/* From now on nothing that begins at p can be advised or protected. */
static void refuse_at(const char *p)
{
    uint32_t low = (uintptr_t)p;
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, low, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    promise();
    install(code, sizeof code / sizeof *code, 0);
}

/* Whether the mapping of p has the flag, two letters as in smaps. */
static int has_flag(const char *p, const char *flag)
{
    static char line[1024];
    FILE *file = fopen("/proc/self/smaps", "r");
    int here = 0, has = 0;
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        unsigned long start, end;
        if (sscanf(line, "%lx-%lx ", &start, &end) == 2) here = (unsigned long)p >= start && (unsigned long)p < end;
        if (here && !strncmp(line, "VmFlags:", 8)) has = strstr(line + 8, flag) != NULL;
    }
    fclose(file);
    return has;
}

/* The new place has what the old one had; the program tidies up. */
static void tidy(const char *what, char *q)
{
    const char *flag = is(what, "wipe") ? " wf" : is(what, "dontfork") ? " dc" : " dd";
    CHECK(has_flag(q + PAGE, flag), "%s is lost", flag);
    size_t n = malloc_usable_size(q) & -PAGE;
    CHECK(!madvise(q, n, MADV_KEEPONFORK) && !madvise(q, n, MADV_DOFORK) && !madvise(q, n, MADV_DODUMP));
}

/* Allocations of others, some of which lie in [at, at + n): ordinary ones. */
static int look(const char *at, size_t n)
{
    int over = 0;
    for (int i = 0; i < BLOCKS; i++) {
        CHECK((blocks[i] = malloc(MIB)));
        memset(blocks[i], 7, MIB);
        if (blocks[i] >= at && blocks[i] < at + n) {
            over++;
            CHECK(!has_flag(blocks[i] + PAGE, " dd"), "it is left out of core dumps");
        }
    }
    fprintf(stderr, "%d allocations lie there\n", over);
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        for (int i = 0; i < BLOCKS; i++)
            for (size_t at = 0; at < MIB; at += PAGE) if (blocks[i][at] != 7) _exit(1);
        _exit(0);
    }
    must_end_well(child);
    return over;
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    const char *how = argv[1], *what = argv[2];
    size_t n = is(how, "shrunk") ? 2 * SIZE : SIZE;
    /* A heap's first 16 MiB are a mapping of their own, and pages are moved from one mapping only. */
    void *volatile first = malloc(64 * MIB);
    char *p = memalign(PAGE, n), *q = p;
    CHECK(first && p);
    memset(p, 1, n);
    /* So that it cannot grow in place. */
    void *volatile wall = malloc(600 * MIB);
    CHECK(wall);
    const char *old = p;
    /* Aligned as madvise wants it, also where a chunk has a header. */
    char *start = (char *)(((uintptr_t)p + PAGE - 1) & -PAGE);
    int moved = is(how, "moved"), refused = is(how, "refused");
    if (moved || refused) {
        if (refused) refuse_fixed();
        /* All of it, as far as it has grown in place. */
        for (size_t m = n; q == p; ) {
            advise(what, q, m);
            CHECK((q = realloc(q, m += 16 * MIB)));
        }
        for (size_t i = 0; i < n; i += PAGE) CHECK(q[i] == 1, "at %zu", i);
        tidy(what, q);
        int over = look(old, n);
        CHECK(moved ? over > 0 : over == 0, "%d", over);
    } else if (is(how, "shrunk")) {
        advise(what, start + SIZE, SIZE - PAGE);
        CHECK((q = realloc(p, SIZE)));
        look(old + SIZE, SIZE);
    } else {
        advise(what, start, n - PAGE);
        if (is(how, "stuck")) refuse_at(p);
        free(p);
        look(old, n);
        /* All of it, once more. */
        for (int i = 0; i < BLOCKS; i++) free(blocks[i]);
        CHECK((p = memalign(PAGE, n)));
        memset(p, 1, n);
        free(p);
    }
    free(wall);
    free(first);
    return passed();
}
