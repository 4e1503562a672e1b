/* A library that calls a function that nobody defines (see loader.c). */
void defined_nowhere(void);
void call_it(void) { defined_nowhere(); }
