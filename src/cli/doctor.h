/* `space doctor`: named checks of this machine and installation. */
#pragma once

#include <jansson.h>

#include "base/cleanup.h"

struct cli;

enum doctor_status {
    DOCTOR_OK,
    DOCTOR_DEGRADED, /* it works, less well */
    DOCTOR_MISSING   /* it cannot work */
};

struct doctor {
    struct cli *cli;
    json_t *node;   /* GET /n1/node, or NULL */
    json_t *checks; /* {"name", "status", "message", "remedy"} in order */
    unsigned int missing;
    unsigned int degraded;
};

/* Records a result. `remedy` NULL when there is nothing to do. */
void doctor_put(struct doctor *d,
                const char *name,
                enum doctor_status status,
                const char *remedy,
                const char *format,
                ...) _printf_(5, 6);
/* Runs every check. */
void doctor_examine(struct doctor *d);
void doctor_done(struct doctor *d);

/* The groups. */
void doctor_check_machine(struct doctor *d);
void doctor_check_host_features(struct doctor *d);
void doctor_check_files(struct doctor *d);
void doctor_check_journals(struct doctor *d); /* needs settings and root */
void doctor_check_daemons(struct doctor *d);
