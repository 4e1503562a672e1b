/* Times malloc and free of one object, to compare C libraries: pair PAIRS [SIZE]
 * Prints the nanoseconds of a pair, the best of ten runs. scripts/musl-pair runs it. */
#include "check.h"

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    long pairs = number(argv[1]);
    size_t size = argc > 2 ? number(argv[2]) : 64;
    double best = 1e9;
    for (int run = 0; run < 10; run++) {
        double start = now();
        for (long i = 0; i < pairs; i++) {
            char *volatile object = malloc(size);
            *object = 1;
            free(object);
        }
        double ns = (now() - start) * 1e9 / pairs;
        if (ns < best) best = ns;
    }
    CHECK(best > 0);
    printf("%.2f ns\n", best);
    return passed();
}
