/* A watch over a directory of a guest: one service of its agent, a bounded history of what it told,
 * and any number of readers that follow it.
 *
 * States (deadline; exits):
 *   starting  FILE_STEP_MAX_MS, the service's; -> watching, ended
 *   watching  without readers WATCH_LINGER_MS;  -> ended; starting, when the service was cut off
 *   ended     its readers take what is left;    -> freed with the last of them
 * A position is the number of events before it; an event's id is the watch's random name and the
 * position after it. What a reader has missed is told as `overflow`. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/list.h"
#include "node/event_id.h"

struct loop_timer;
struct service;
struct services;

#define WATCH_EVENTS_MAX 4096U    /* kept */
#define WATCH_BYTES_MAX  1048576U /* kept, as text */
#define WATCH_LINGER_MS  60000

struct watch_event;

struct watch {
    struct list link; /* in services->watches; in none when ended */
    struct services *services;
    char *user;
    struct buf path;
    bool recursive;
    bool watching; /* has been, once */
    bool is_ended;
    struct error error; /* why it ended */
    struct service *service;
    unsigned int restarts; /* since it was watching last */
    uint64_t name;
    uint64_t first; /* position of the oldest event kept */
    uint64_t end;   /* position after the newest */
    size_t bytes;
    struct watch_event **ring; /* the event at `position % room` */
    size_t room;
    struct list readers;
    struct loop_timer *timer; /* the end of the lingering, or the next start */
};

/* Embedded in a reader. */
struct watch_reader {
    struct list link;
    struct watch *watch; /* NULL: in none */
    uint64_t position;
    bool missed; /* `overflow` is due */
    /* The watch has begun, has more, or has ended: look at it. */
    void (*fn)(void *arg);
    void *arg;
};

/* What is watched, by whose rights. */
struct watch_target {
    struct span path;
    bool recursive;
    const char *user;
};

/* Adds a reader to the watch over this path, a new one if need be. `after` is the id of the last
 * event that the reader has, or "". Errors: limit_exceeded, what the service says at once. */
int watch_join(struct services *services,
               const struct watch_target *target,
               const char *after,
               struct watch_reader *reader,
               struct error *err) _must_check_;
/* May free the watch. Fine for a reader that is in none. */
void watch_leave(struct watch_reader *reader);
/* Appends the text of the reader's next event and moves it on. False when there is none now. */
bool watch_next(struct watch_reader *reader, struct buf *text);
/* The id of the reader's position. */
void watch_format_id(const struct watch_reader *reader, char out[EVENT_ID_SIZE]);
/* The agent is gone: all of them end. */
void watches_end(struct services *services);
