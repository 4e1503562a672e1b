/* Prints a line, as a small C program does, then what it weighs, as a worker does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long kib(const char *text, const char *name)
{
	const char *at = strstr(text, name);
	return at ? atol(at + strlen(name)) : 0;
}

int main(void)
{
	static char status[8192];
	char *word = malloc(100);
	FILE *file;

	if (!word)
		return 1;
	strcpy(word, "hello, world");
	puts(word);
	file = fopen("/proc/self/status", "r");
	if (!file || fread(status, 1, sizeof(status) - 1, file) == 0)
		return 1;
	fclose(file);
	printf("{\"checksum\":1,\"metrics\":{\"rss_kib\":%ld,\"rss_peak_kib\":%ld}}\n",
	       kib(status, "VmRSS:"), kib(status, "VmHWM:"));
	free(word);
	return 0;
}
