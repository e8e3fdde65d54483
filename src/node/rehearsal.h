/* A template's rehearsal: its typical programs, run in a guest that is nobody's yet.
 *
 * Before a base is saved, so that the blocks of the disk that they read are in its memory, once for
 * all; and, where a restored guest is cold, in each waiting VM again, so that they are translated.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "node/agent.h"
#include "node/template.h"

struct rehearsal {
    struct agent *agent;
    json_t *commands;
    size_t next;
    const char *user;
    int64_t command_ms;
    int64_t all_ms; /* after which no other one begins; 0: no limit */
    int64_t until_ms;
    void (*done)(void *arg);
    void *arg;
};

/* done comes when all have ended, however they did, perhaps from inside this call; never when the
 * VM goes. Ends with rehearsal_stop; template_info stays until then. */
void rehearsal_start(struct rehearsal *r,
                     struct agent *agent,
                     const char *volume,
                     const struct template_info *template_info);
/* A zeroed one is fine. */
void rehearsal_stop(struct rehearsal *r);
