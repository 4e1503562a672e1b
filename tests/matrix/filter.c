/* A program under a filter of system calls as a container or a service has it: filter FILE PROGRAM [ARGUMENT...]
 * docker.filter says what stands in FILE. */
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

enum { CALLS = 1024, LINE = 4096 };
static uint32_t answer[CALLS], mask[CALLS];
static struct sock_filter code[2 * CALLS + 16];
static int n;

static void add(struct sock_filter instruction)
{
    CHECK(n < (int)(sizeof code / sizeof *code));
    code[n++] = instruction;
}

/* NAME=NUMBER */
static unsigned call(const char *word)
{
    const char *equal = strchr(word, '=');
    CHECK(equal, "%s", word);
    unsigned number = strtoul(equal + 1, NULL, 10);
    CHECK(number < CALLS, "%s", word);
    return number;
}

static void read_file(const char *path)
{
    static char line[LINE];
    unsigned others = 0, unknown = CALLS, to_unknown = 0;
    static char seen[CALLS];
    FILE *f = fopen(path, "r");
    CHECK(f, "%s", path);
    while (fgets(line, sizeof line, f)) {
        char *word = strtok(line, " \n"), *next = strtok(NULL, " \n");
        if (!word || *word == '#') continue;
        CHECK(next, "%s", word);
        if (!strcmp(word, "refuse")) others = strtoul(next, NULL, 10);
        else if (!strcmp(word, "unknown")) {
            unknown = strtoul(next, NULL, 10);
            to_unknown = strtoul(strtok(NULL, " \n"), NULL, 10);
        } else if (!strcmp(word, "only")) {
            unsigned number = call(next);
            mask[number] = strtoul(strtok(NULL, " \n"), NULL, 16);
            seen[number] = 1;
            answer[number] = SECCOMP_RET_ALLOW;
        } else if (!strcmp(word, "errno")) {
            unsigned number = call(strtok(NULL, " \n"));
            seen[number] = 1;
            answer[number] = SECCOMP_RET_ERRNO | strtoul(next, NULL, 10);
        } else {
            CHECK(!strcmp(word, "allow"), "%s", word);
            for (; next; next = strtok(NULL, " \n")) {
                seen[call(next)] = 1;
                answer[call(next)] = SECCOMP_RET_ALLOW;
            }
        }
    }
    fclose(f);
    CHECK(others, "%s refuses nothing", path);
    for (unsigned i = 0; i < CALLS; i++)
        if (!seen[i]) answer[i] = SECCOMP_RET_ERRNO | (i >= unknown ? to_unknown : others);
}

int main(int argc, char **argv)
{
    CHECK(argc > 2, "filter FILE PROGRAM [ARGUMENT...]");
    read_file(argv[1]);
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)));
    add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)));
    /* Runs of calls with the same answer, from the bottom. */
    for (unsigned i = 0; i < CALLS; i++) {
        if (mask[i]) {
            add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, i, 0, 4));
            add((struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])));
            add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mask[i], 0, 1));
            add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM));
            add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer[i]));
        } else if (i + 1 == CALLS || mask[i + 1] || answer[i] != answer[i + 1]) {
            add((struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, i, 1, 0));
            add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer[i]));
        }
    }
    add((struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS));
    struct sock_fprog program = { n, code };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) == 0);
    execvp(argv[2], argv + 2);
    CHECK(0, "%s", argv[2]);
}
