/* For tests of services: the agent of agent_rig.h with its identity confirmed, and an empty
 * directory below /tmp, in which services start. Every failure ends the test. */
#pragma once

#include "guest/agent_rig.h"
#include "wire/service_record.h"

#define ANSWER_RECORDS 1200U

struct service_rig {
    struct rig rig;
    char directory[64];
    uint32_t last_channel;
};

/* What a service answered so far. The spans point into the channel's output. */
struct answer {
    struct service_entry entries[ANSWER_RECORDS];
    size_t n_entries;
    struct service_change changes[ANSWER_RECORDS];
    size_t n_changes;
    struct service_listener listeners[64];
    size_t n_listeners;
    struct service_sample sample;
    bool has_sample;
    struct service_error error;
    bool has_error;
    struct service_done done;
    bool is_done;
    struct service_body body;
    bool has_body;
    struct span bytes; /* after BODY */
};

/* cmocka's set-up and tear-down: *state is a struct service_rig. */
int service_rig_set_up(void **state);
int service_rig_tear_down(void **state);

/* The path of name in the rig's directory; valid until the 8th next call. */
const char *service_rig_path(const struct service_rig *s, const char *name);
/* Makes a file with this text; parents must exist. */
void service_rig_file(const struct service_rig *s, const char *name, const char *text);
/* Whether that file has exactly these bytes. */
bool service_rig_file_is(const struct service_rig *s, const char *name, struct span content);

/* Starts a service (argv ends with NULL) with the rig's directory as its own; returns the channel,
 * which is used again after 60 others. */
uint32_t service_rig_begin(struct service_rig *s, const char *const *argv, bool with_input);
/* Reads what was answered until now. */
void service_rig_read(struct service_rig *s, uint32_t channel, struct answer *ret);
/* Starts it, sends input, and its end when there is any, and waits for the end of the service. */
void service_rig_call(struct service_rig *s,
                      const char *const *argv,
                      struct span input,
                      struct answer *ret);
/* The exit status of the last one that ended. */
const struct rig_channel *service_rig_channel(const struct service_rig *s, uint32_t channel);
/* Sends bytes from *sent on as the window allows, then the end, until all is taken or it is over.
 */
void service_rig_feed(struct service_rig *s, uint32_t channel, struct span input, bool end);
/* Calls and wants this errno in ERROR. */
void service_rig_fails(struct service_rig *s, const char *const *argv, int errnum);

#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_INPUT  span_make(NULL, 0)
