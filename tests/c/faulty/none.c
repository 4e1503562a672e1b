/* No fault: the wrapper itself must pass. */
#include "base.h"
