#include "api/create.h"

#include <errno.h>
#include <inttypes.h>

#include "api/api.h"
#include "api/drain.h"
#include "api/node_link.h"
#include "api/store_checkpoint.h"
#include "base/clock.h"

void create_with_template(struct request *rq, const char *template_name, request_fn fn)
{
    if (node_link_find_template(rq->api->node, template_name) != NULL) {
        fn(rq);
        return;
    }
    node_link_refresh_templates(rq, fn);
}

static int64_t or_template(int64_t asked, const json_t *template, const char *key)
{
    return asked != 0 ? asked : (int64_t)json_integer_value(json_object_get(template, key));
}

/* Names of a JSON array that the record has not yet. */
static int add_names(struct sandbox *s, const char *more, struct error *err)
{
    _cleanup_json_ json_t *names = json_loads(s->env_names, 0, NULL);
    _cleanup_json_ json_t *added = json_loads(more, 0, NULL);
    char *text;
    json_t *name;
    size_t i;

    json_array_foreach(added, i, name) {
        bool has = false;
        json_t *known;
        size_t k;

        json_array_foreach(names, k, known) {
            has = has || json_equal(known, name);
        }
        if (!has) {
            (void)json_array_append(names, name);
        }
    }
    text = names == NULL ? NULL : json_dumps(names, JSON_COMPACT);
    if (text == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    free(s->env_names);
    s->env_names = text;
    return 0;
}

/* One with memory goes on in it. */
static int check_fixed(const struct create_spec *spec, const json_t *template, struct error *err)
{
    const struct {
        const char *field;
        int64_t asked;
    } sizes[] = {
        {"vcpus", spec->vcpus}, {"memory_mib", spec->memory_mib}, {"disk_mib", spec->disk_mib}};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int64_t has = (int64_t)json_integer_value(json_object_get(template, sizes[i].field));

        if (sizes[i].asked != 0 && sizes[i].asked != has) {
            return error_set_code(err, ERROR_INVALID_REQUEST, sizes[i].field,
                                  "%s must be %" PRId64 ": sandboxes of template %s go on in its "
                                  "memory",
                                  sizes[i].field, has, spec->template_name);
        }
    }
    return 0;
}

/* That very version, and the variables that its sandboxes begin with. */
static int take_made(const struct create_spec *spec,
                     const json_t *template,
                     struct sandbox *s,
                     struct error *err)
{
    _cleanup_free_ char *names =
        json_dumps(json_object_get(template, "env_names"), JSON_COMPACT | JSON_ENCODE_ANY);
    int r =
        json_is_true(json_object_get(template, "memory")) ? check_fixed(spec, template, err) : 0;

    (void)snprintf(s->template_version, sizeof(s->template_version), "%s",
                   json_string_value(json_object_get(template, "version")));
    if (r < 0) {
        return r;
    }
    return names == NULL ? error_set(err, ENOMEM, "no memory") : add_names(s, names, err);
}

static int choose_sizes(struct request *rq,
                        const struct create_spec *spec,
                        struct sandbox *s,
                        struct error *err)
{
    const json_t *version =
        node_link_find_version(rq->api->node, spec->template_name, spec->template_version);
    /* One that is not known yet: the node knows. */
    const json_t *template =
        version != NULL ? version : node_link_find_template(rq->api->node, spec->template_name);
    int64_t least = (int64_t)json_integer_value(json_object_get(template, "disk_mib"));

    if (template == NULL) {
        return error_set_code(err, ERROR_NOT_FOUND, "template", "there is no template %s",
                              spec->template_name);
    }
    s->vcpus = or_template(spec->vcpus, template, "vcpus");
    s->memory_mib = or_template(spec->memory_mib, template, "memory_mib");
    s->disk_mib = or_template(spec->disk_mib, template, "disk_mib");
    if (version != NULL && s->disk_mib < least) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "disk_mib",
                              "disk_mib must be at least the template's %" PRId64 ", got %" PRId64,
                              least, s->disk_mib);
    }
    return version != NULL && json_is_string(json_object_get(version, "checkpoint_id"))
               ? take_made(spec, version, s, err)
               : 0;
}

static int over_quota(struct error *err, const char *limit, uint64_t quota)
{
    return error_set_code(err, ERROR_LIMIT_EXCEEDED, limit,
                          "this key may have %" PRIu64 " %s in living sandboxes", quota, limit);
}

static int check_quotas(struct request *rq, const struct sandbox *s, int count, struct error *err)
{
    const struct settings *set = &rq->api->settings;
    struct sandbox_usage usage;
    int r;

    if (set->quota_sandboxes == 0 && set->quota_vcpus == 0 && set->quota_memory_mib == 0) {
        return 0;
    }
    r = store_sandbox_usage(rq->api->store, s->key_id, &usage, err);
    if (r < 0) {
        return r;
    }
    if (set->quota_sandboxes != 0 && usage.sandboxes + count > (int64_t)set->quota_sandboxes) {
        return over_quota(err, "sandboxes", set->quota_sandboxes);
    }
    if (set->quota_vcpus != 0 && usage.vcpus + s->vcpus * count > (int64_t)set->quota_vcpus) {
        return over_quota(err, "vcpus", set->quota_vcpus);
    }
    if (set->quota_memory_mib != 0 &&
        usage.memory_mib + s->memory_mib * count > (int64_t)set->quota_memory_mib) {
        return over_quota(err, "memory_mib", set->quota_memory_mib);
    }
    return 0;
}

static int check_name(struct request *rq, const char *name, char other[ID_SIZE], struct error *err)
{
    int r;

    if (name == NULL) {
        return 0;
    }
    r = store_sandbox_find_name(rq->api->store, name, other, err);
    if (r > 0) {
        return error_set_code(err, ERROR_CONFLICT, "name", "the name %s belongs to sandbox %s",
                              name, other);
    }
    return r;
}

/* It stands in for template and sizes; its variables are the sandbox's too. */
static int take_checkpoint(struct request *rq,
                           const struct create_spec *spec,
                           struct sandbox *s,
                           struct error *err)
{
    _cleanup_checkpoint_ struct checkpoint c = {0};
    int r = store_checkpoint_get(rq->api->store, spec->checkpoint_id, &c, err);

    if (r < 0) {
        return r;
    }
    if (r == 0 || c.state != CHECKPOINT_READY) {
        return error_set_code(err, ERROR_NOT_FOUND, "checkpoint", "there is no checkpoint %s",
                              spec->checkpoint_id);
    }
    memcpy(s->template_name, c.template_name, sizeof(s->template_name));
    memcpy(s->template_version, c.template_version, sizeof(s->template_version));
    memcpy(s->parent_id, c.sandbox_id, sizeof(s->parent_id));
    s->vcpus = c.vcpus;
    s->memory_mib = c.memory_mib;
    s->disk_mib = c.disk_mib;
    return add_names(s, c.env_names, err);
}

/* The names of an object as a JSON array. */
static char *names_of(json_t *object)
{
    _cleanup_json_ json_t *names = json_array();
    const char *key;
    json_t *value;

    json_object_foreach(object, key, value) {
        if (json_array_append_new(names, json_string(key)) < 0) {
            return NULL;
        }
    }
    return json_dumps(names, JSON_COMPACT);
}

static int
fill(struct request *rq, const struct create_spec *spec, struct sandbox *s, struct error *err)
{
    int r = request_make_id(rq, "sb", s->id);

    if (r < 0) {
        return error_set(err, -r, "no random bytes");
    }
    (void)snprintf(s->key_id, sizeof(s->key_id), "%s", rq->key->record.id);
    (void)snprintf(s->name, sizeof(s->name), "%s", spec->name == NULL ? "" : spec->name);
    (void)snprintf(s->template_name, sizeof(s->template_name), "%s", spec->template_name);
    (void)snprintf(s->template_version, sizeof(s->template_version), "%s", spec->template_version);
    (void)snprintf(s->node, sizeof(s->node), "%s", rq->api->settings.node_name);
    s->state = SANDBOX_CREATING;
    s->created_at = clock_real_ms();
    s->rules = spec->rules;
    s->expires_at = spec->rules.timeout_ms == 0 ? 0 : s->created_at + spec->rules.timeout_ms;
    s->metadata = spec->metadata == NULL ? strdup("{}") : json_dumps(spec->metadata, JSON_COMPACT);
    s->env_names = names_of(spec->env);
    if (s->metadata == NULL || s->env_names == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    return 0;
}

int create_prepare(struct request *rq,
                   const struct create_spec *spec,
                   struct sandbox *ret_sandbox,
                   char ret_other_id[21],
                   struct error *err)
{
    struct sandbox s = {.seq = 0};
    int r;

    ret_other_id[0] = '\0';
    r = fill(rq, spec, &s, err);
    if (r == 0) {
        r = spec->checkpoint_id[0] != '\0' ? take_checkpoint(rq, spec, &s, err)
                                           : choose_sizes(rq, spec, &s, err);
    }
    if (r == 0) {
        r = check_name(rq, spec->name, ret_other_id, err);
    }
    if (r == 0) {
        r = check_quotas(rq, &s, 1, err);
    }
    if (r == 0) {
        r = drain_refuse(rq->api, ERROR_CAPACITY_UNAVAILABLE, "no sandbox is made", err);
    }
    if (r < 0) {
        sandbox_done(&s);
        return r;
    }
    *ret_sandbox = s;
    return 0;
}

/* What it takes over. */
static int inherit(const struct create_spec *spec,
                   const struct sandbox *source,
                   struct sandbox *s,
                   struct error *err)
{
    memcpy(s->template_name, source->template_name, sizeof(s->template_name));
    memcpy(s->template_version, source->template_version, sizeof(s->template_version));
    memcpy(s->parent_id, source->id, sizeof(s->parent_id));
    s->vcpus = source->vcpus;
    s->memory_mib = source->memory_mib;
    s->disk_mib = source->disk_mib;
    if (spec->metadata == NULL) {
        free(s->metadata);
        s->metadata = strdup(source->metadata);
        if (s->metadata == NULL) {
            return error_set(err, ENOMEM, "no memory");
        }
    }
    return add_names(s, source->env_names, err);
}

int create_prepare_fork(struct request *rq,
                        const struct create_spec *spec,
                        const struct sandbox *source,
                        struct sandbox *ret_sandbox,
                        char ret_other_id[21],
                        struct error *err)
{
    struct sandbox s = {.seq = 0};
    int r;

    ret_other_id[0] = '\0';
    r = fill(rq, spec, &s, err);
    if (r == 0) {
        r = inherit(spec, source, &s, err);
    }
    if (r == 0) {
        r = check_name(rq, spec->name, ret_other_id, err);
    }
    if (r == 0) {
        r = check_quotas(rq, &s, spec->count, err);
    }
    if (r == 0) {
        r = drain_refuse(rq->api, ERROR_CAPACITY_UNAVAILABLE, "no sandbox is made", err);
    }
    if (r < 0) {
        sandbox_done(&s);
        return r;
    }
    *ret_sandbox = s;
    return 0;
}

void create_fail(struct request *rq, const struct error *err, const char *other_id)
{
    json_t *details = other_id[0] == '\0' ? NULL : json_pack("{s:s}", "sandbox_id", other_id);

    request_fail_more(rq, err, details);
}

json_t *create_node_body(const struct create_spec *spec, const struct sandbox *s)
{
    json_t *body;

    if (spec->checkpoint_id[0] != '\0') {
        return json_pack("{s:s, s:s, s:O*}", "checkpoint", spec->checkpoint_id, "hostname",
                         s->name[0] == '\0' ? s->id : s->name, "env", spec->env);
    }
    body = json_pack("{s:s, s:I, s:I, s:I, s:s}", "template", s->template_name, "vcpus",
                     (json_int_t)s->vcpus, "memory_mib", (json_int_t)s->memory_mib, "disk_mib",
                     (json_int_t)s->disk_mib, "hostname", s->name[0] == '\0' ? s->id : s->name);

    if (s->template_version[0] != '\0') {
        (void)json_object_set_new(body, "template_version", json_string(s->template_version));
    }
    if (spec->env != NULL) {
        (void)json_object_set(body, "env", spec->env);
    } else {
        (void)json_object_set_new(body, "env", json_object());
    }
    return body;
}
