/* A driver whose table somebody else makes, and says in DRIVER_TABLE where it lies. */
#include <stdlib.h>

#include "nnadapter_driver.h"

NNADAPTER_EXPORT const NNAdapterDriver *nnadapter_driver(uint32_t host_version) {
    (void)host_version;
    const char *address = getenv("DRIVER_TABLE");
    return address ? (const NNAdapterDriver *)strtoull(address, NULL, 0) : NULL;
}
