/* Signals as clients name them. */
#pragma once

#include "wire/agent_process.h"

struct json_fields;

#define SIGNAL_NAME_SIZE 16U

/* "SIGTERM" and so on; 0 for an unknown name. */
int signal_number(const char *name);
void signal_name(int signal, char out[SIGNAL_NAME_SIZE]);
/* Reads "signal" and "scope" of an object. */
void signal_read(struct json_fields *f, int *ret_signal, enum agent_scope *ret_scope);
