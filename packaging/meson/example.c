/* A program whose memory Ebbtide manages: prints what it keeps after a peak, before and after a request to release. */
#include <ebbtide.h>
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
    enum { OBJECTS = 100000 };
    static void *objects[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) objects[i] = malloc(1000);
    for (int i = 0; i < OBJECTS; i++) free(objects[i]);
    printf("Ebbtide %s released %zu bytes\n", ebb_version(), ebb_release());
    return 0;
}
