/* A program that defines an allocator of its own, which never reuses memory. Only its existence matters. */
#include "check.h"

static char memory[1 << 20];
static size_t used;

void *malloc(size_t size)
{
    char *object = memory + used;

    used += (size + 15) / 16 * 16;
    return used <= sizeof memory ? object : NULL;
}

void *calloc(size_t count, size_t size)
{
    return malloc(count * size);
}

void *realloc(void *object, size_t size)
{
    char *moved = malloc(size);

    for (size_t i = 0; object && i < size && (char *)object + i < memory + sizeof memory; i++)
        moved[i] = ((char *)object)[i];
    return moved;
}

void free(void *object)
{
    (void)object;
}

int main(void)
{
    void *object = malloc(1);
    CHECK((char *)object >= memory && (char *)object < memory + sizeof memory);
    puts("ok");
    return 0;
}
