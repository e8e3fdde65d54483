#include "api/report.h"

#include <errno.h>

#include "base/clock.h"

static int read_text(const json_t *object, const char *key, char *out, size_t out_size)
{
    const json_t *value = json_object_get(object, key);

    out[0] = '\0';
    if (value == NULL || json_is_null(value)) {
        return 0;
    }
    if (!json_is_string(value)) {
        return -EBADMSG;
    }
    (void)snprintf(out, out_size, "%s", json_string_value(value));
    return 0;
}

static int read_number(const json_t *object, const char *key, int64_t *ret_value)
{
    const json_t *value = json_object_get(object, key);

    if (!json_is_integer(value) || json_integer_value(value) < 0) {
        return -EBADMSG;
    }
    *ret_value = json_integer_value(value);
    return 0;
}

static int read_time(const json_t *object, const char *key, int64_t *ret_ms)
{
    const json_t *value = json_object_get(object, key);

    *ret_ms = 0;
    if (value == NULL || json_is_null(value)) {
        return 0;
    }
    return json_is_string(value) ? clock_parse(json_string_value(value), ret_ms) : -EBADMSG;
}

static int read_state(const json_t *record, struct sandbox_report *report)
{
    const char *state = json_string_value(json_object_get(record, "state"));

    if (state == NULL) {
        return -EBADMSG;
    }
    report->deleted = strcmp(state, "deleted") == 0;
    if (report->deleted) {
        report->state = SANDBOX_DELETING;
        return 0;
    }
    return sandbox_state_find(state, &report->state) < 0 ? -EBADMSG : 0;
}

int report_read(const json_t *record, struct sandbox_report *ret_report)
{
    struct sandbox_report report = {.deleted = false};
    const json_t *reason = json_object_get(record, "reason");
    const json_t *identity = json_object_get(record, "identity");

    if (read_text(record, "id", report.id, sizeof(report.id)) < 0 ||
        !id_is_valid(report.id, "sb") || read_state(record, &report) < 0) {
        return -EBADMSG;
    }
    if (!report.deleted &&
        (read_text(reason, "code", report.reason_code, sizeof(report.reason_code)) < 0 ||
         read_text(reason, "message", report.reason_message, sizeof(report.reason_message)) < 0 ||
         read_text(record, "manifest", report.manifest, sizeof(report.manifest)) < 0 ||
         read_text(record, "template_version", report.template_version,
                   sizeof(report.template_version)) < 0 ||
         read_number(record, "vcpus", &report.vcpus) < 0 ||
         read_number(record, "memory_mib", &report.memory_mib) < 0 ||
         read_number(record, "disk_mib", &report.disk_mib) < 0 ||
         read_time(record, "running_at", &report.running_at) < 0 ||
         read_time(record, "active_at", &report.active_at) < 0)) {
        return -EBADMSG;
    }
    report.identity = json_is_object(identity) ? identity : NULL;
    *ret_report = report;
    return 0;
}

static bool set_number(int64_t *to, int64_t value)
{
    bool changed = *to != value;

    *to = value;
    return changed;
}

static bool set_text(char *to, size_t size, const char *value)
{
    if (strcmp(to, value) == 0) {
        return false;
    }
    (void)snprintf(to, size, "%s", value);
    return true;
}

static int apply_identity(const json_t *identity, struct sandbox *s)
{
    char *text;

    if (identity == NULL) {
        return 0;
    }
    text = json_dumps(identity, JSON_COMPACT | JSON_SORT_KEYS);
    if (text == NULL) {
        return -ENOMEM;
    }
    if (s->identity != NULL && strcmp(s->identity, text) == 0) {
        free(text);
        return 0;
    }
    free(s->identity);
    s->identity = text;
    return 1;
}

/* A wake that failed leaves it suspended since before. */
static bool note_suspension(const struct sandbox_report *report, struct sandbox *s)
{
    if (report->state == SANDBOX_RUNNING || report->state == SANDBOX_PAUSED) {
        return set_number(&s->suspended_at, 0);
    }
    return report->state == SANDBOX_SUSPENDED && s->suspended_at == 0 &&
           set_number(&s->suspended_at, clock_real_ms());
}

/* What is on its way to somewhere, or cannot go on, may yet need it. */
static bool note_manifest(const struct sandbox_report *report, struct sandbox *s)
{
    if (report->state != SANDBOX_RUNNING && report->state != SANDBOX_PAUSED &&
        report->state != SANDBOX_SUSPENDED) {
        return false;
    }
    return set_text(s->manifest, sizeof(s->manifest),
                    report->state == SANDBOX_SUSPENDED ? report->manifest : "");
}

int report_apply(const struct sandbox_report *report, struct sandbox *s)
{
    int changed = apply_identity(report->identity, s);
    bool more = false;

    if (changed < 0) {
        return changed;
    }
    if (s->state != report->state) {
        s->state = report->state;
        more = true;
    }
    more |= note_suspension(report, s);
    more |= note_manifest(report, s);
    more |= set_text(s->reason_code, sizeof(s->reason_code), report->reason_code);
    more |= set_text(s->reason_message, sizeof(s->reason_message), report->reason_message);
    if (report->template_version[0] != '\0') {
        more |=
            set_text(s->template_version, sizeof(s->template_version), report->template_version);
    }
    if (report->vcpus != 0) { /* the node does not know them where its own record is damaged */
        more |= set_number(&s->vcpus, report->vcpus);
        more |= set_number(&s->memory_mib, report->memory_mib);
        more |= set_number(&s->disk_mib, report->disk_mib);
    }
    if (report->running_at != 0) {
        more |= set_number(&s->running_at, report->running_at);
    }
    if (report->active_at > s->active_at) {
        more |= set_number(&s->active_at, report->active_at);
    }
    return changed || more;
}

void report_note_loss(const struct sandbox_report *report, struct sandbox_loss *loss)
{
    if (report->state == SANDBOX_ERROR && !report->deleted) {
        loss->is_known = true;
        (void)snprintf(loss->code, sizeof(loss->code), "%s", report->reason_code);
        (void)snprintf(loss->message, sizeof(loss->message), "%s", report->reason_message);
    }
}

bool report_apply_loss(const struct sandbox_loss *loss, struct sandbox *s)
{
    if (!loss->is_known || s->state == SANDBOX_ERROR) {
        return false;
    }
    s->state = SANDBOX_ERROR;
    (void)set_text(s->reason_code, sizeof(s->reason_code), loss->code);
    (void)set_text(s->reason_message, sizeof(s->reason_message), loss->message);
    return true;
}
