/* The header block of a tar archive: where its fields are. */
#pragma once

#include "base/span.h"

struct tar_field {
    size_t at;
    size_t n;
};

#define TAR_NAME_FIELD   ((struct tar_field){0, 100})
#define TAR_MODE_FIELD   ((struct tar_field){100, 8})
#define TAR_UID_FIELD    ((struct tar_field){108, 8})
#define TAR_GID_FIELD    ((struct tar_field){116, 8})
#define TAR_SIZE_FIELD   ((struct tar_field){124, 12})
#define TAR_TIME_FIELD   ((struct tar_field){136, 12})
#define TAR_SUM_FIELD    ((struct tar_field){148, 8})
#define TAR_TYPE_FIELD   ((struct tar_field){156, 1})
#define TAR_TARGET_FIELD ((struct tar_field){157, 100})
#define TAR_MAGIC_FIELD  ((struct tar_field){257, 8}) /* and version */
#define TAR_USER_FIELD   ((struct tar_field){265, 32})
#define TAR_GROUP_FIELD  ((struct tar_field){297, 32})
#define TAR_MAJOR_FIELD  ((struct tar_field){329, 8})
#define TAR_MINOR_FIELD  ((struct tar_field){337, 8})
#define TAR_PREFIX_FIELD ((struct tar_field){345, 155})

/* The sum of all bytes, those of the sum itself counted as spaces. */
static inline uint32_t tar_block_sum(const uint8_t *block, size_t n)
{
    uint32_t sum = 0;

    for (size_t i = 0; i < n; i++) {
        bool is_sum = i >= TAR_SUM_FIELD.at && i < TAR_SUM_FIELD.at + TAR_SUM_FIELD.n;

        sum += is_sum ? (uint32_t)' ' : block[i];
    }
    return sum;
}
