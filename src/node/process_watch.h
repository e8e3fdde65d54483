/* Who waits for something to happen to a process. */
#pragma once

#include "base/list.h"

struct process;

/* What a watch hears of, as bits. */
#define PROCESS_EVENT_STARTED 1U
#define PROCESS_EVENT_OUTPUT  2U
#define PROCESS_EVENT_STDIN   4U
#define PROCESS_EVENT_TIMEOUT 8U  /* timeout with on_timeout leave: it runs on */
#define PROCESS_EVENT_ENDED   16U /* exited or lost */
#define PROCESS_EVENT_FAILED  32U /* could not be started: start_error says why; freed after */
#define PROCESS_EVENT_GONE    64U /* the record is being freed */

/* Embedded in what waits for a process; removed before its memory goes, also from inside fn. */
struct process_watch {
    struct list link;
    void (*fn)(void *arg, struct process *process, unsigned int events);
    void *arg;
};

void process_watch_add(struct process *p, struct process_watch *watch);
/* Fine for one that is all zero. */
void process_watch_remove(struct process_watch *watch);
void process_notify(struct process *p, unsigned int events);
