/* GET …/metrics: the samples that are kept of one sandbox. */
#include <errno.h>
#include <inttypes.h>

#include "base/buf.h"
#include "base/clock.h"
#include "node/data.h"
#include "node/routes.h"
#include "node/sandbox.h"
#include "node/services.h"

#define KIB       1024U
#define PERMYRIAD 100.0 /* of a percent */

static int read_time(struct call *call, const char *name, int64_t *time_ms, struct error *err)
{
    char text[64];

    if (call_query_text(call, name, text, sizeof(text), err) < 0) {
        return -EINVAL;
    }
    if (text[0] != '\0' && clock_parse(text, time_ms) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, name,
                              "%s must be a time such as 2026-11-30T12:00:00Z", name);
    }
    return 0;
}

static void put_guest_numbers(const struct metrics_sample *s, struct buf *text)
{
    if (s->memory_total_kib == 0) {
        buf_put_str(text, "\"memory_used_bytes\":null,\"memory_total_bytes\":null,"
                          "\"disk_used_bytes\":null,\"disk_total_bytes\":null,\"processes\":null}");
        return;
    }
    buf_printf(text,
               "\"memory_used_bytes\":%" PRIu64 ",\"memory_total_bytes\":%" PRIu64
               ",\"disk_used_bytes\":%" PRIu64 ",\"disk_total_bytes\":%" PRIu64
               ",\"processes\":%" PRIu32 "}",
               (uint64_t)s->memory_used_kib * KIB, (uint64_t)s->memory_total_kib * KIB,
               (uint64_t)s->disk_used_kib * KIB, (uint64_t)s->disk_total_kib * KIB, s->processes);
}

static void put_sample(const struct metrics_sample *s, struct buf *text)
{
    char at[CLOCK_TEXT_SIZE];

    clock_format(s->at_ms, at);
    buf_printf(text, "{\"at\":\"%s\",\"cpu_seconds\":%.3f,\"cpu_percent\":%.2f,", at,
               (double)s->cpu_ns / 1e9, (double)s->cpu_permyriad / PERMYRIAD);
    put_guest_numbers(s, text);
}

void handle_metrics(struct call *call, json_t *body)
{
    static const char *const names[] = {"start", "end", NULL};
    _cleanup_buf_ struct buf text = buf_make(0);
    struct sandbox *sb = call_sandbox(call);
    const struct services *services;
    const struct metrics_sample *sample;
    int64_t start = INT64_MIN;
    int64_t end = INT64_MAX;
    unsigned int count = 0;
    struct error err = {0};

    (void)body;
    if (sb == NULL) {
        return;
    }
    if (call_query_check(call, names, &err) < 0 || read_time(call, "start", &start, &err) < 0 ||
        read_time(call, "end", &end, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    services = sandbox_services(sb);
    buf_put_str(&text, "{\"items\":[");
    for (unsigned int i = 0;
         services != NULL && (sample = metrics_get(&services->metrics, i)) != NULL; i++) {
        if (sample->at_ms >= start && sample->at_ms <= end) {
            buf_put_str(&text, count++ > 0 ? "," : "");
            put_sample(sample, &text);
        }
    }
    buf_put_str(&text, "]}");
    if (buf_error(&text) != 0) {
        (void)error_set(&err, ENOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    call_respond_text(call, 200, buf_span(&text));
}
