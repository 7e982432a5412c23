/* Format of serialized programs, written by blob.c and read by restore.c. */
#ifndef ACME_BLOB_H
#define ACME_BLOB_H

#include "acme.h"

/* Includes the byte order: the last four bytes are reversed on machines with another one. */
#define ACME_MAGIC {0x656D6361, 0x01020304}
#define ACME_FORMAT 1u /* incremented when the format after the header changes */

typedef struct acme_head {
    uint32_t magic[2];
    char chip[8];    /* target chip */
    uint32_t format; /* other formats are refused */
    uint32_t release; /* release of the driver that wrote it; newer ones are refused */
    uint64_t bytes, checksum; /* of the bytes after the header */
} acme_head;

typedef struct acme_operand_row { /* followed by name, dimensions, and data of constants */
    int32_t data_type, layout, lifetime;
    uint32_t rank;
    uint64_t bytes;
} acme_operand_row;

typedef struct acme_attribute_row { /* followed by name, and strings or arrays */
    int32_t kind;
    uint32_t count;
    int64_t number;
} acme_attribute_row;

uint64_t acme_checksum(uint64_t before, const void *data, uint64_t bytes);

/* Model that points into a copy of the bytes. */
struct acme_restored {
    NNAdapterModel model;
    char *bytes;
    void **made; /* arrays and structures to free */
    size_t made_count;
};

/* Bounds are checked, so that no input causes reads outside; contents are trusted, because the checksum matches. */
NNAdapterStatus acme_restore(const void *data, uint64_t bytes, acme_restored **restored, NNAdapterError *error);

#endif
