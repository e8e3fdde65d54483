#include "node/qmp_parse.h"

#include <errno.h>

int qmp_split_line(struct span s, struct span *ret_line)
{
    size_t end = span_find(span_head(s, QMP_LINE_MAX), 0, '\n');
    struct span line;

    if (end == s.n) {
        return s.n >= QMP_LINE_MAX ? -EMSGSIZE : 0;
    }
    if (end >= QMP_LINE_MAX) {
        return -EMSGSIZE;
    }
    line = span_head(s, end);
    if (line.n > 0 && line.p[line.n - 1] == '\r') {
        line = span_head(line, line.n - 1);
    }
    *ret_line = line;
    return (int)(end + 1);
}

const char *qmp_string(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

static int get_id(const json_t *root, uint64_t *ret_id)
{
    const json_t *id = json_object_get(root, "id");

    if (!json_is_integer(id) || json_integer_value(id) <= 0) {
        return -EBADMSG;
    }
    *ret_id = (uint64_t)json_integer_value(id);
    return 0;
}

static int classify(json_t *root, struct qmp_message *m)
{
    json_t *part;

    if (json_object_get(root, "QMP") != NULL) {
        m->kind = QMP_KIND_GREETING;
        return 0;
    }
    m->name = qmp_string(root, "event");
    if (m->name != NULL) {
        m->kind = QMP_KIND_EVENT;
        m->body = json_object_get(root, "data");
        return 0;
    }
    part = json_object_get(root, "return");
    if (part != NULL) {
        m->kind = QMP_KIND_RETURN;
        m->body = part;
        return get_id(root, &m->id);
    }
    m->kind = QMP_KIND_ERROR;
    m->name = qmp_string(json_object_get(root, "error"), "desc");
    if (m->name == NULL) {
        return -EBADMSG;
    }
    return get_id(root, &m->id);
}

int qmp_parse_line(struct span line, struct qmp_message *ret_message)
{
    struct qmp_message m = {0};
    int r;

    m.root = json_loadb((const char *)line.p, line.n, JSON_REJECT_DUPLICATES, NULL);
    if (m.root == NULL) {
        return -EBADMSG;
    }
    r = json_is_object(m.root) ? classify(m.root, &m) : -EBADMSG;
    if (r < 0) {
        json_decref(m.root);
        return r;
    }
    *ret_message = m;
    return 0;
}

void qmp_message_done(struct qmp_message *message)
{
    json_decref(message->root);
    *message = (struct qmp_message){0};
}
