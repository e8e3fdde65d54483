#include "api/fake_control.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/span.h"

json_t *control_checkpoints(const char *path)
{
    char name[160];

    (void)snprintf(name, sizeof(name), "%s.checkpoints", path);
    return json_load_file(name, 0, NULL);
}

void control_read(const char *path, struct control *c)
{
    _cleanup_buf_ struct buf text = buf_make(4096);
    struct span rest;

    memset(c, 0, sizeof(*c));
    if (file_read(AT_FDCWD, path, 4096, &text) < 0) {
        return;
    }
    rest = buf_span(&text);
    while (rest.n > 0) {
        struct span line = span_head(rest, span_find(rest, 0, '\n'));
        size_t blank = span_find(line, 0, ' ');
        struct span key = span_head(line, blank);
        struct span value = span_skip(line, blank + 1);
        uint64_t number = 0;

        rest = span_skip(rest, line.n + 1);
        (void)span_parse_u64(value, 1000000, &number);
        if (span_equals_str(key, "delay_ms")) {
            c->delay_ms = (int)number;
        } else if (span_equals_str(key, "fail")) {
            (void)span_copy_str(value, c->fail, sizeof(c->fail));
        } else if (span_equals_str(key, "fail_each")) {
            c->fail_each = (int)number;
        } else if (span_equals_str(key, "die_in_put")) {
            c->die_in_put = number != 0;
        } else if (span_equals_str(key, "die_in_answer")) {
            c->die_in_answer = number != 0;
        } else if (span_equals_str(key, "lose_answer")) {
            c->lose_answer = number != 0;
        } else if (span_equals_str(key, "lose")) {
            c->lose = number != 0;
        } else if (span_equals_str(key, "not_ready")) {
            c->not_ready = number != 0;
        } else if (span_equals_str(key, "started")) {
            c->is_started = number != 0;
        } else if (span_equals_str(key, "delete_delay_ms")) {
            c->delete_delay_ms = (int)number;
        } else if (span_equals_str(key, "change_delay_ms")) {
            c->change_delay_ms = (int)number;
        } else if (span_equals_str(key, "change_fail")) {
            (void)span_copy_str(value, c->change_fail, sizeof(c->change_fail));
        } else if (span_equals_str(key, "settling")) {
            c->is_settling = number != 0;
        } else if (span_equals_str(key, "delete_fail")) {
            c->delete_fail = number != 0;
        }
    }
}
