/* The service `metrics`: what the guest uses, as its kernel tells. */
#pragma once

#include "base/span.h"
#include "wire/service_record.h"

/* Reads the sample. Figures that cannot be had are 0. */
void metrics_take(struct service_sample *ret);

/* The pure parts: the text of /proc/stat (busy time of all processors in nanoseconds), and a line
 * of /proc/meminfo by its name in bytes. 0 when it is not there. */
uint64_t metrics_parse_cpu(struct span stat, uint64_t ticks_per_second);
uint64_t metrics_parse_memory(struct span meminfo, const char *name);
