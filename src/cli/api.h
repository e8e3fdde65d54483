/* What several verbs ask of the API: resolving names, paging through lists, waiting for operations,
 * building request bodies from options. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "base/error.h"
#include "base/id.h"

struct args;
struct cli;

/* A sandbox's id from an id or a name. not_found when no living sandbox has that name. */
int api_find_sandbox(struct cli *cli, const char *word, char ret_id[ID_SIZE], struct error *err)
    _must_check_;
/* The id of a checkpoint: `word` is one, or a name that only one has; of `sandbox_id` alone when
 * that is not NULL. */
int api_find_checkpoint(struct cli *cli,
                        const char *word,
                        const char *sandbox_id,
                        char ret_id[ID_SIZE],
                        struct error *err) _must_check_;
/* The sandbox that a process belongs to: the named one, or (NULL) whichever has it. */
int api_find_process(struct cli *cli,
                     const char *sandbox_word,
                     const char *process_id,
                     char ret_sandbox_id[ID_SIZE],
                     struct error *err) _must_check_;
/* All pages of a list, as one document of the API's shape. `max` 0 means all. */
int api_list(struct cli *cli, const char *path, uint64_t max, json_t **ret, struct error *err)
    _must_check_;
int api_get(struct cli *cli, const char *path, json_t **ret, struct error *err) _must_check_;
/* POST or DELETE with an Idempotency-Key. body and ret may be NULL. */
int api_send(struct cli *cli,
             const char *method,
             const char *path,
             const json_t *body,
             json_t **ret,
             struct error *err) _must_check_;
/* Reads `answer`'s operation until it has ended; a failed one is err. Where that took another call,
 * `answer` has the operation and its sandbox as they are then. */
int api_wait_operation(struct cli *cli, json_t *answer, struct error *err) _must_check_;

/* Body of a create from --name, --env, --vcpus, --memory, --disk, --metadata, --lifetime and the
 * template word. NULL and err (EINVAL: usage) on bad values. */
json_t *api_create_body(const struct args *args, const char *template_name, struct error *err);
/* Adds argv, env, cwd, user and timeout_seconds of run and exec. */
int api_put_command(json_t *body, const struct args *args, struct error *err) _must_check_;

/* A string of an object, or "" when absent or null. */
const char *api_text(const json_t *object, const char *key);
int64_t api_number(const json_t *object, const char *key);
