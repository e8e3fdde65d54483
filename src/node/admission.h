/* Whether one more sandbox fits: pure arithmetic over facts that the caller gathers. */
#pragma once

#include <stdint.h>

#include "base/error.h"

struct admission {
    uint64_t total_mib;          /* RAM of the host */
    uint64_t reserve_mib;        /* kept for the host and the daemons */
    uint64_t overcommit_percent; /* of total - reserve */
    uint64_t available_mib;      /* MemAvailable now */
    uint64_t admitted_mib;       /* sum over living sandboxes */
    uint64_t disk_free_mib;
    uint64_t disk_reserve_mib;
    uint64_t sandboxes;
    uint64_t max_sandboxes;
};

/* The setting, or its default: an eighth of RAM, at least 1 GiB. */
uint64_t admission_reserve_mib(uint64_t setting_mib, uint64_t total_mib);
/* What the sum of memory_mib may be. */
uint64_t admission_limit_mib(const struct admission *a);
/* 0, capacity_unavailable or storage_full. */
int admission_check(const struct admission *a, unsigned int memory_mib, struct error *err)
    _must_check_;
/* MemTotal and MemAvailable from text in the format of /proc/meminfo. 0 or -EBADMSG. */
int admission_parse_meminfo(const char *text, uint64_t *ret_total_mib, uint64_t *ret_available_mib)
    _must_check_;
