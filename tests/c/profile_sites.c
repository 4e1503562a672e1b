// Places whose allocations are known, for the tests of `ebbtide profile`.
//   profile_sites KEPT_MIB [wait]    keeps that much until its end; 99 % of its calls of malloc are freed at once. It loses 8 MiB.
//                                    wait: reads lines before its end. f frees three of four kept objects; any other keeps as much again
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OBJECT = 1024, LOST = 8 << 20 };

struct object {
    struct object *next;
    char rest[OBJECT - sizeof(void *)];
};

#define SITE __attribute__((noinline))

SITE static struct object *keep(struct object *next) {
    struct object *object = malloc(OBJECT);
    if (!object) abort();
    object->next = next;
    return object;
}

SITE static void burst(void) {
    for (int i = 0; i < 99; i++) {
        char *object = malloc(OBJECT);
        if (!object) abort();
        *(volatile char *)object = 1;
        free(object);
    }
}

// Frees three of four.
static void thin(struct object *kept) {
    for (; kept; kept = kept->next)
        for (int i = 0; i < 3 && kept->next; i++) {
            struct object *next = kept->next;
            kept->next = next->next;
            free(next);
        }
}

SITE static void lose(void) {
    for (int i = 0; i < LOST / (64 << 10); i++) {
        char *object = malloc(64 << 10);
        if (!object) abort();
        *(volatile char *)object = 1;
    }
}

int main(int count, char **words) {
    long objects = (count > 1 ? atol(words[1]) : 64) << 10;
    struct object *kept = NULL;
    int waits = count > 2 && strcmp(words[2], "wait") == 0;
    for (long i = 0; i < objects; i++) {
        kept = keep(kept);
        burst();
    }
    lose();
    if (waits) {
        char line[80];
        puts("ready");
        fflush(stdout);
        while (fgets(line, sizeof line, stdin)) {
            if (line[0] == 'f')
                thin(kept);
            else
                for (long i = 0; i < objects; i++) kept = keep(kept);
            puts("more");
            fflush(stdout);
        }
    }
    while (kept) {
        struct object *next = kept->next;
        free(kept);
        kept = next;
    }
    return count > 3 ? atoi(words[3]) : 0;
}
