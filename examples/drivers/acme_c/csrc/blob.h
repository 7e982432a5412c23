/* Programs as bytes: what blob.c writes and restore.c reads. */
#ifndef ACME_BLOB_H
#define ACME_BLOB_H

#include "acme.h"

/* Byte order is part of the magic: the bytes of the last four stand the other way around on other machines. */
#define ACME_MAGIC {0x656D6361, 0x01020304}
#define ACME_FORMAT 1u /* raised when what lies behind the head changes its meaning */

typedef struct acme_head {
    uint32_t magic[2];
    char chip[8];    /* what the program is for */
    uint32_t format; /* others are not read */
    uint32_t release; /* of the driver that wrote it: those of older ones run, those of newer ones may not */
    uint64_t bytes, checksum; /* of what lies behind the head */
} acme_head;

typedef struct acme_operand_row { /* then its name, dimensions, and data if it is constant */
    int32_t data_type, layout, lifetime;
    uint32_t rank;
    uint64_t bytes;
} acme_operand_row;

typedef struct acme_attribute_row { /* then its name, and what is no single number */
    int32_t kind;
    uint32_t count;
    int64_t number;
} acme_attribute_row;

uint64_t acme_checksum(uint64_t before, const void *data, uint64_t bytes);

/* A model that points into a copy of the bytes. */
struct acme_restored {
    NNAdapterModel model;
    char *bytes;
    void **made; /* arrays and structures, each of which is freed */
    size_t made_count;
};

/* Bounds are checked, so that no bytes lead anywhere else; what they mean is trusted, as their checksum was right. */
NNAdapterStatus acme_restore(const void *data, uint64_t bytes, acme_restored **restored, NNAdapterError *error);

#endif
