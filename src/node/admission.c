#include "node/admission.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/span.h"

uint64_t admission_reserve_mib(uint64_t setting_mib, uint64_t total_mib)
{
    uint64_t reserve = total_mib / 8;

    if (setting_mib != 0) {
        return setting_mib;
    }
    if (reserve < 1024) {
        reserve = 1024;
    }
    /* A small machine keeps at least half of itself for sandboxes. */
    return reserve > total_mib / 2 ? total_mib / 2 : reserve;
}

uint64_t admission_limit_mib(const struct admission *a)
{
    uint64_t usable = a->total_mib > a->reserve_mib ? a->total_mib - a->reserve_mib : 0;

    return usable / 100 * a->overcommit_percent + usable % 100 * a->overcommit_percent / 100;
}

int admission_check(const struct admission *a, unsigned int memory_mib, struct error *err)
{
    uint64_t limit = admission_limit_mib(a);

    if (a->disk_free_mib < a->disk_reserve_mib) {
        return error_set_code(err, ERROR_STORAGE_FULL, NULL,
                              "the node's volume has %" PRIu64
                              " MiB free, less than its reserve of "
                              "%" PRIu64 " MiB",
                              a->disk_free_mib, a->disk_reserve_mib);
    }
    if (a->sandboxes >= a->max_sandboxes) {
        return error_set_code(err, ERROR_CAPACITY_UNAVAILABLE, NULL,
                              "the node has its %" PRIu64 " sandboxes (node.max_sandboxes)",
                              a->max_sandboxes);
    }
    if (a->admitted_mib + memory_mib > limit) {
        return error_set_code(err, ERROR_CAPACITY_UNAVAILABLE, NULL,
                              "%u MiB of memory do not fit: %" PRIu64 " of %" PRIu64
                              " MiB are given to sandboxes",
                              memory_mib, a->admitted_mib, limit);
    }
    if (a->available_mib < a->reserve_mib) {
        return error_set_code(err, ERROR_CAPACITY_UNAVAILABLE, NULL,
                              "the host has %" PRIu64 " MiB of memory available, less than its "
                              "reserve of %" PRIu64 " MiB",
                              a->available_mib, a->reserve_mib);
    }
    return 0;
}

static int find_kib(const char *text, const char *key, uint64_t *ret_mib)
{
    const char *at = strstr(text, key);
    struct span rest;
    uint64_t kib;

    if (at == NULL) {
        return -EBADMSG;
    }
    rest = span_of_str(at + strlen(key));
    while (rest.n > 0 && rest.p[0] == ' ') {
        rest = span_skip(rest, 1);
    }
    if (span_parse_u64(span_head(rest, span_find(rest, 0, ' ')), UINT64_MAX, &kib) < 0) {
        return -EBADMSG;
    }
    *ret_mib = kib / 1024;
    return 0;
}

int admission_parse_meminfo(const char *text, uint64_t *ret_total_mib, uint64_t *ret_available_mib)
{
    uint64_t total;
    uint64_t available;

    if (find_kib(text, "MemTotal:", &total) < 0 ||
        find_kib(text, "MemAvailable:", &available) < 0) {
        return -EBADMSG;
    }
    *ret_total_mib = total;
    *ret_available_mib = available;
    return 0;
}
