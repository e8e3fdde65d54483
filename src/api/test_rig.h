/* Test support: space-api and a fake node as processes of their own, on files of their own. */
#pragma once

#include <sys/types.h>

#include "api/test_client.h"

struct rig {
    char dir[64];
    char config[96];
    int port;
    pid_t api;
    pid_t node;
    char key[64];
};

/* Handles `--api …` and `--fake-node …` of argv: the test program is all three. -1: neither. */
int rig_main(int argc, char **argv);

/* `settings`: further lines of the configuration. Both programs run, a first admin key exists. */
struct rig *rig_new(const char *settings);
void rig_free(struct rig *rig);
void rig_start_api(struct rig *rig);
/* Ends it and waits. Returns the wait status. */
int rig_stop_api(struct rig *rig, int signal_number);
void rig_start_node(struct rig *rig);
void rig_stop_node(struct rig *rig);
/* Waits until the node has ended by itself. */
void rig_wait_node(struct rig *rig);
/* The fake node's behaviour from now on; "" for good. */
void rig_control(struct rig *rig, const char *text);
void rig_wait_ready(struct rig *rig);
/* Makes a key by `--create-key … --out`. Returns the exit status. */
int rig_make_key(struct rig *rig, const char *name, const char *role, const char *file);
/* The same request with the admin key. */
void rig_ask(struct rig *rig,
             const char *method,
             const char *path,
             const char *body,
             struct answer *ret_answer);
/* The same; the status must be this. */
void rig_expect(
    struct rig *rig, int status, const char *method, const char *path, const char *body);
/* Makes a running sandbox. */
void rig_create(struct rig *rig, const char *body, char ret_id[21]);
void rig_sleep_ms(int ms);
