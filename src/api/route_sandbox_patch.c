/* PATCH of a sandbox: the record here, the environment at the node. */
#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/expiry.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/record_json.h"
#include "api/routes.h"
#include "base/clock.h"

#define METADATA_MAX 64
#define ENV_MAX      256

struct patch {
    bool has_name;
    const char *name; /* NULL: none */
    json_t *metadata;
    json_t *env;
};

static int read_patch(struct request *rq, struct patch *p, struct error *err)
{
    struct json_fields f;

    memset(p, 0, sizeof(*p));
    json_fields_start(&f, rq->body, "", err);
    p->has_name = json_fields_has(&f, "name");
    p->name = json_fields_string(&f, "name", 1, SANDBOX_NAME_SIZE - 1, NULL);
    if (p->name != NULL && !create_name_is_valid(p->name)) {
        json_fields_fail(&f, "name", "must be 1 to 63 of a-z, 0-9 and -, got %.70s", p->name);
    }
    p->metadata = json_fields_object(&f, "metadata", METADATA_MAX);
    create_check_metadata(&f, p->metadata, true);
    p->env = json_fields_object(&f, "env", ENV_MAX);
    create_check_env(&f, p->env, true);
    json_fields_skip(&f, "lifecycle");
    return json_fields_finish(&f);
}

static int merge_metadata(struct sandbox *s, json_t *changes, struct error *err)
{
    _cleanup_json_ json_t *merged = json_loads(s->metadata, 0, NULL);
    const char *key;
    json_t *value;
    char *text;

    json_object_foreach(changes, key, value) {
        if (json_is_null(value)) {
            (void)json_object_del(merged, key);
        } else if (json_object_set(merged, key, value) < 0) {
            return error_set(err, ENOMEM, "no memory");
        }
    }
    if (json_object_size(merged) > METADATA_MAX) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "metadata",
                              "metadata would have more than %d pairs", METADATA_MAX);
    }
    text = json_dumps(merged, JSON_COMPACT);
    if (text == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    free(s->metadata);
    s->metadata = text;
    return 0;
}

/* A name into the set of env_names, or out of it. */
static int merge_name(json_t *names, const char *name, bool remove)
{
    size_t index;
    json_t *have;

    json_array_foreach(names, index, have) {
        if (strcmp(json_string_value(have), name) == 0) {
            return remove ? json_array_remove(names, index) : 0;
        }
    }
    return remove ? 0 : json_array_append_new(names, json_string(name));
}

static int merge_env_names(struct sandbox *s, json_t *changes, struct error *err)
{
    _cleanup_json_ json_t *names = json_loads(s->env_names, 0, NULL);
    const char *key;
    json_t *value;
    char *text = NULL;
    int r = 0;

    json_object_foreach(changes, key, value) {
        r |= merge_name(names, key, json_is_null(value));
    }
    if (r == 0 && json_array_size(names) > ENV_MAX) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "env",
                              "env would have more than %d variables", ENV_MAX);
    }
    text = r == 0 ? json_dumps(names, JSON_COMPACT) : NULL;
    if (text == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    free(s->env_names);
    s->env_names = text;
    return 0;
}

static int merge_lifecycle(struct request *rq, struct sandbox *s, struct error *err)
{
    struct json_fields f;
    bool has_timeout;

    json_fields_start(&f, rq->body, "", err);
    has_timeout = create_read_lifecycle(&f, &s->rules);
    if (f.error == 0 && has_timeout) {
        s->expires_at = s->rules.timeout_ms == 0 ? 0 : clock_real_ms() + s->rules.timeout_ms;
    }
    return f.error;
}

static int change(struct request *rq,
                  const struct patch *p,
                  struct sandbox *s,
                  char other[ID_SIZE],
                  struct error *err)
{
    int r = 0;

    if (p->name != NULL && strcmp(p->name, s->name) != 0) {
        r = store_sandbox_find_name(rq->api->store, p->name, other, err);
        if (r > 0) {
            return error_set_code(err, ERROR_CONFLICT, "name", "the name %s belongs to sandbox %s",
                                  p->name, other);
        }
    }
    if (r == 0 && p->has_name) {
        (void)snprintf(s->name, sizeof(s->name), "%s", p->name == NULL ? "" : p->name);
    }
    if (r == 0 && p->metadata != NULL) {
        r = merge_metadata(s, p->metadata, err);
    }
    if (r == 0 && p->env != NULL) {
        r = merge_env_names(s, p->env, err);
    }
    return r == 0 ? merge_lifecycle(rq, s, err) : r;
}

/* Reads the record again: it may have changed while the node was asked. */
static void patch_record(struct request *rq, bool write)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct patch p;
    struct error err = {0};
    char other[ID_SIZE] = "";
    int r = read_patch(rq, &p, &err);

    if (r == 0 && !node_call_sandbox(rq, &s)) {
        return;
    }
    if (r == 0) {
        r = change(rq, &p, &s, other, &err);
    }
    if (r == 0 && write) {
        r = store_sandbox_update(rq->api->store, &s, &err);
    }
    if (r < 0) {
        create_fail(rq, &err, other);
        return;
    }
    if (!write) {
        rq->resume(rq);
        return;
    }
    expiry_changed(rq->api, s.expires_at);
    if (s.rules.keep_suspended_ms > 0 && s.state == SANDBOX_SUSPENDED) {
        expiry_changed(rq->api, s.suspended_at + s.rules.keep_suspended_ms);
    }
    if (s.rules.idle_timeout_ms > 0) {
        expiry_changed(rq->api, s.active_at + s.rules.idle_timeout_ms);
    }
    request_answer(rq, 200, sandbox_json(&s));
}

static void on_node_answer(struct request *rq, int status, json_t *answer)
{
    (void)status;
    (void)answer;
    patch_record(rq, true);
}

static void patch_env(struct request *rq)
{
    _cleanup_json_ json_t *body = json_pack("{s:O}", "env", json_object_get(rq->body, "env"));
    char path[160];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s", rq->params[0]);
    node_call_json(rq, "PATCH", path, body, on_node_answer);
}

static void need_node(struct request *rq)
{
    node_link_need(rq, patch_env);
}

static void write_now(struct request *rq)
{
    patch_record(rq, true);
}

void route_sandbox_patch(struct request *rq)
{
    json_t *env = json_object_get(rq->body, "env");

    /* First without writing, so that nothing is changed at the node when the rest is refused. */
    rq->resume = json_object_size(env) > 0 ? need_node : write_now;
    patch_record(rq, false);
}
