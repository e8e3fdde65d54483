/* What space-node and space-objects agree on. */
#pragma once

/* Descriptors of the process. Those of a job's files follow, as its request says. */
enum object_fd {
    OBJECT_FD_REQUEST = 3, /* JSON */
    OBJECT_FD_RESULT,      /* one JSON object is written to it */
    OBJECT_FD_KEYS,        /* the file with them, of a bucket */
    OBJECT_FD_FIRST
};
