/* The fields of a create and of a patch, checked. */
#include <inttypes.h>

#include "api/create.h"
#include "api/lifecycle.h"
#include "wire/agent_limits.h"

#define VCPUS_MAX          8
#define MEMORY_MIN_MIB     128
#define MEMORY_MAX_MIB     16384
#define MEMORY_STEP_MIB    128
#define DISK_MAX_MIB       1048576
#define METADATA_MAX       64
#define METADATA_KEY_MAX   64
#define METADATA_VALUE_MAX 1024
#define ENV_MAX            256
#define ENV_BYTES_MAX      262144
#define TEMPLATE_NAME_MAX  (SANDBOX_NAME_SIZE - 1)
#define TIMEOUT_MAX_MS     (31536000LL * 1000)
#define IDLE_DEFAULT_MS    (21600LL * 1000)
#define LOWER              "abcdefghijklmnopqrstuvwxyz"
#define UPPER              "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
#define DIGITS             "0123456789"

bool create_name_is_valid(const char *name)
{
    size_t n = strnlen(name, SANDBOX_NAME_SIZE);

    return n > 0 && n < SANDBOX_NAME_SIZE && strspn(name, LOWER DIGITS "-") == n;
}

bool create_read_template(const char *text, struct create_spec *spec)
{
    struct span all = span_of_str(text);
    size_t at = span_find(all, 0, '@');

    if (at == 0 || at > TEMPLATE_NAME_MAX ||
        span_copy_str(span_head(all, at), spec->template_name, sizeof(spec->template_name)) < 0 ||
        strspn(spec->template_name, LOWER DIGITS "._-") != at || spec->template_name[0] == '.' ||
        spec->template_name[0] == '-') {
        return false;
    }
    return at == all.n || (span_copy_str(span_skip(all, at + 1), spec->template_version,
                                         sizeof(spec->template_version)) == 0 &&
                           id_is_valid(spec->template_version, "tm"));
}

void create_check_metadata(struct json_fields *f, json_t *metadata, bool merge)
{
    const char *key;
    json_t *value;

    json_object_foreach(metadata, key, value) {
        size_t n = strlen(key);

        if (n == 0 || n > METADATA_KEY_MAX || strspn(key, LOWER UPPER DIGITS "._-") != n) {
            json_fields_fail(f, "metadata",
                             "has the key %.70s; keys are 1 to %d characters of A-Za-z0-9._-", key,
                             METADATA_KEY_MAX);
        } else if (!(merge && json_is_null(value)) &&
                   (!json_is_string(value) || json_string_length(value) > METADATA_VALUE_MAX)) {
            json_fields_fail(f, "metadata",
                             "has a value for %.70s that is no text of up to %d bytes", key,
                             METADATA_VALUE_MAX);
        }
    }
}

static bool is_env_name(const char *name)
{
    return name[0] != '\0' && strchr(DIGITS, name[0]) == NULL &&
           strspn(name, LOWER UPPER DIGITS "_") == strlen(name);
}

void create_check_env(struct json_fields *f, json_t *env, bool merge)
{
    size_t total = 0;
    const char *key;
    json_t *value;

    json_object_foreach(env, key, value) {
        if (!is_env_name(key)) {
            json_fields_fail(f, "env",
                             "has the name %.70s; names are letters, digits and _, no digit first",
                             key);
            return;
        }
        if (!(merge && json_is_null(value)) &&
            (!json_is_string(value) ||
             strlen(json_string_value(value)) != json_string_length(value))) {
            json_fields_fail(f, "env", "has a value for %.70s that is no text", key);
            return;
        }
        if (strlen(key) + 1 + json_string_length(value) > AGENT_STRING_BYTES) {
            json_fields_fail(f, "env", "has more than %u bytes in %.70s, its name included",
                             AGENT_STRING_BYTES, key);
            return;
        }
        total += strlen(key) + json_string_length(value) + 2;
    }
    if (total > ENV_BYTES_MAX) {
        json_fields_fail(f, "env", "is larger than %d bytes", ENV_BYTES_MAX);
    }
}

struct lifecycle_rules create_default_rules(void)
{
    return (struct lifecycle_rules){.timeout_action = LIFECYCLE_DELETE,
                                    .idle_timeout_ms = IDLE_DEFAULT_MS,
                                    .idle_action = LIFECYCLE_SUSPEND,
                                    .auto_wake = true};
}

/* null is the default: `none`. */
static void read_action(struct json_fields *f,
                        const char *name,
                        enum lifecycle_action none,
                        enum lifecycle_action *action)
{
    static const char *const words[] = {"delete", "pause", "suspend", NULL};
    int initial = *action == LIFECYCLE_NONE ? 0 : (int)(*action - LIFECYCLE_DELETE);

    if (!json_fields_has(f, name)) {
        return;
    }
    if (json_fields_is_null(f, name)) {
        json_fields_skip(f, name);
        *action = none;
        return;
    }
    *action =
        (enum lifecycle_action)(LIFECYCLE_DELETE + json_fields_choice(f, name, words, initial));
}

static void read_duration(struct json_fields *f, const char *name, int64_t *ms)
{
    int64_t value = json_fields_duration_ms(f, name, 1, TIMEOUT_MAX_MS, *ms);

    *ms = value == JSON_DURATION_OFF ? 0 : value;
}

bool create_read_lifecycle(struct json_fields *f, struct lifecycle_rules *rules)
{
    json_t *lifecycle = json_fields_object(f, "lifecycle", 16);
    struct lifecycle_rules merged = *rules;
    struct json_fields inner;
    bool has;

    if (lifecycle == NULL || f->error != 0) {
        return false;
    }
    json_fields_start(&inner, lifecycle, "lifecycle.", f->err);
    has = json_fields_has(&inner, "timeout_seconds");
    read_duration(&inner, "timeout_seconds", &merged.timeout_ms);
    read_action(&inner, "timeout_action", LIFECYCLE_DELETE, &merged.timeout_action);
    read_duration(&inner, "idle_timeout_seconds", &merged.idle_timeout_ms);
    read_action(&inner, "idle_action", LIFECYCLE_NONE, &merged.idle_action);
    merged.auto_wake = json_fields_bool(&inner, "auto_wake", merged.auto_wake);
    read_duration(&inner, "keep_suspended_seconds", &merged.keep_suspended_ms);
    f->error = json_fields_finish(&inner);
    if (f->error != 0) {
        return false;
    }
    if (merged.idle_timeout_ms > 0 && merged.idle_action == LIFECYCLE_NONE) {
        merged.idle_action = LIFECYCLE_SUSPEND;
    }
    *rules = merged;
    return has;
}

/* What every way of making a sandbox takes; the rules are merged into those that are there. */
static void read_own(struct json_fields *f, struct create_spec *spec)
{
    spec->name = json_fields_string(f, "name", 1, SANDBOX_NAME_SIZE - 1, NULL);
    if (spec->name != NULL && !create_name_is_valid(spec->name)) {
        json_fields_fail(f, "name", "must be 1 to 63 of a-z, 0-9 and -, got %.70s", spec->name);
    }
    spec->env = json_fields_object(f, "env", ENV_MAX);
    create_check_env(f, spec->env, false);
    spec->metadata = json_fields_object(f, "metadata", METADATA_MAX);
    create_check_metadata(f, spec->metadata, false);
    (void)create_read_lifecycle(f, &spec->rules);
}

static void read_spec(struct json_fields *f, struct create_spec *ret_spec)
{
    const char *template_name = json_fields_string(f, "template", 1, 128, NULL);
    if (template_name != NULL && !create_read_template(template_name, ret_spec)) {
        json_fields_fail(f, "template",
                         "must be the name of a template, or NAME@VERSION, got %.80s",
                         template_name);
    }
    ret_spec->vcpus = (int64_t)json_fields_unsigned(f, "vcpus", 1, VCPUS_MAX, 0);
    ret_spec->memory_mib =
        (int64_t)json_fields_unsigned(f, "memory_mib", MEMORY_MIN_MIB, MEMORY_MAX_MIB, 0);
    if (ret_spec->memory_mib % MEMORY_STEP_MIB != 0) {
        json_fields_fail(f, "memory_mib", "must be a multiple of %d, got %" PRId64, MEMORY_STEP_MIB,
                         ret_spec->memory_mib);
    }
    ret_spec->disk_mib = (int64_t)json_fields_unsigned(f, "disk_mib", 1, DISK_MAX_MIB, 0);
    ret_spec->rules = create_default_rules();
    read_own(f, ret_spec);
}

void create_spec_read_fork(struct json_fields *f, struct create_spec *spec)
{
    spec->count = (int)json_fields_unsigned(f, "count", 1, FORK_MAX, 1);
    read_own(f, spec);
    if (spec->name != NULL && spec->count > 1) {
        json_fields_fail(f, "name", "is for a fork of count 1: names are unique");
    }
}

void create_spec_read(struct json_fields *f, struct create_spec *ret_spec)
{
    memset(ret_spec, 0, sizeof(*ret_spec));
    json_fields_require(f, "template");
    read_spec(f, ret_spec);
}

void create_spec_read_any(struct json_fields *f, struct create_spec *ret_spec)
{
    const char *id;

    if (!json_fields_has(f, "checkpoint_id") || json_fields_is_null(f, "checkpoint_id")) {
        json_fields_skip(f, "checkpoint_id");
        create_spec_read(f, ret_spec);
        return;
    }
    memset(ret_spec, 0, sizeof(*ret_spec));
    id = json_fields_string(f, "checkpoint_id", 1, ID_LENGTH, NULL);
    if (id != NULL && !id_is_valid(id, "ck")) {
        json_fields_fail(f, "checkpoint_id", "is no checkpoint id: %.40s", id);
    } else if (id != NULL) {
        (void)snprintf(ret_spec->checkpoint_id, sizeof(ret_spec->checkpoint_id), "%s", id);
    }
    read_spec(f, ret_spec);
    if (ret_spec->template_name[0] != '\0') {
        json_fields_fail(f, "template", "cannot be chosen with a checkpoint");
    } else if (ret_spec->vcpus != 0 || ret_spec->memory_mib != 0 || ret_spec->disk_mib != 0) {
        json_fields_fail(f,
                         ret_spec->vcpus != 0        ? "vcpus"
                         : ret_spec->memory_mib != 0 ? "memory_mib"
                                                     : "disk_mib",
                         "cannot be chosen with a checkpoint");
    }
}
