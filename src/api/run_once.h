/* POST /v1/run: a sandbox, a command, an answer, and the sandbox's end. */
#pragma once

#include "api/request.h"

struct api;
struct sandbox_report;

/* Whether a call for this sandbox is on its way. */
bool run_once_is_busy(const struct api *api, const char *sandbox_id);
/* The feed says this of its sandbox meanwhile. */
void run_once_note(struct api *api, const struct sandbox_report *report);
/* Drops all calls: the program ends. */
void run_once_done(struct api *api);
