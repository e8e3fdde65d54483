#include "api/record_json.h"

#include "base/clock.h"
#include "io/json_request.h"

json_t *time_json(int64_t real_ms)
{
    char text[CLOCK_TEXT_SIZE];

    if (real_ms == 0) {
        return json_null();
    }
    clock_format(real_ms, text);
    return json_string(text);
}

static json_t *text_json(const char *text)
{
    return text == NULL || text[0] == '\0' ? json_null() : json_string(text);
}

/* A JSON text of ours from the store. */
static json_t *stored_json(const char *text)
{
    return text == NULL ? json_null() : json_loads(text, 0, NULL);
}

/* Whole seconds as a whole number; null for 0. */
static json_t *duration_json(int64_t ms)
{
    if (ms == 0) {
        return json_null();
    }
    return ms % 1000 == 0 ? json_integer(ms / 1000) : json_real((double)ms / 1000.0);
}

static json_t *lifecycle_json(const struct sandbox *s)
{
    return json_pack("{s:o, s:s?, s:o, s:s?, s:b, s:o}", "idle_timeout_seconds",
                     duration_json(s->rules.idle_timeout_ms), "idle_action",
                     lifecycle_action_name(s->rules.idle_action), "timeout_seconds",
                     duration_json(s->rules.timeout_ms), "timeout_action",
                     lifecycle_action_name(s->rules.timeout_action), "auto_wake",
                     s->rules.auto_wake, "keep_suspended_seconds",
                     duration_json(s->rules.keep_suspended_ms));
}

static json_t *reason_json(const struct sandbox *s)
{
    if (s->reason_code[0] == '\0') {
        return json_null();
    }
    return json_pack("{s:s, s:s}", "code", s->reason_code, "message", s->reason_message);
}

json_t *sandbox_json(const struct sandbox *s)
{
    return json_pack(
        "{s:s, s:o, s:s, s:o, s:o, s:s, s:o, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, "
        "s:s, s:o, s:s?}",
        "id", s->id, "name", text_json(s->name), "template", s->template_name, "template_version",
        text_json(s->template_version), "parent_id", text_json(s->parent_id), "state",
        sandbox_state_name(s->state), "state_reason", reason_json(s), "vcpus", (json_int_t)s->vcpus,
        "memory_mib", (json_int_t)s->memory_mib, "disk_mib", (json_int_t)s->disk_mib, "metadata",
        stored_json(s->metadata), "env_names", stored_json(s->env_names), "lifecycle",
        lifecycle_json(s), "created_at", time_json(s->created_at), "running_at",
        time_json(s->running_at), "active_at", time_json(s->active_at), "expires_at",
        time_json(s->expires_at), "node", s->node, "identity", stored_json(s->identity),
        "durability",
        s->state != SANDBOX_SUSPENDED ? NULL
        : s->manifest[0] != '\0'      ? "replicated"
                                      : "local");
}

json_t *operation_json(const struct operation *o)
{
    json_t *result = o->result == NULL ? json_object() : stored_json(o->result);

    return json_pack("{s:s, s:s, s:o, s:s, s:o, s:o, s:o, s:o}", "id", o->id, "kind", o->kind,
                     "sandbox_id", text_json(o->sandbox_id), "state",
                     operation_state_name(o->state), "created_at", time_json(o->created_at),
                     "finished_at", time_json(o->finished_at), "error", stored_json(o->error),
                     "result", result);
}

json_t *checkpoint_json(const struct checkpoint *c)
{
    return json_pack("{s:s, s:o, s:s, s:b, s:I, s:s, s:o}", "id", c->id, "name", text_json(c->name),
                     "sandbox_id", c->sandbox_id, "memory", (int)c->memory, "size_bytes",
                     (json_int_t)c->size_bytes, "durability",
                     c->manifest[0] != '\0' ? "replicated" : "local", "created_at",
                     time_json(c->created_at));
}

json_t *key_json(const struct key_record *key)
{
    return json_pack("{s:s, s:s, s:s, s:o, s:o}", "id", key->id, "name", key->name, "role",
                     key_role_name(key->role), "created_at", time_json(key->created_at),
                     "expires_at", time_json(key->expires_at));
}

char *error_text_of_envelope(const json_t *envelope)
{
    _cleanup_json_ json_t *inner = json_copy(json_object_get(envelope, "error"));

    (void)json_object_del(inner, "request_id");
    return json_dumps(inner, JSON_COMPACT);
}

char *error_text(const struct error *err)
{
    _cleanup_json_ json_t *envelope = json_error_make(err, "", NULL);

    return error_text_of_envelope(envelope);
}
