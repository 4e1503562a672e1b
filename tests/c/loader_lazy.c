/* A library that calls a function that is not defined anywhere (see loader.c). */
void defined_nowhere(void);
void call_it(void) { defined_nowhere(); }
