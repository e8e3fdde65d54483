/* Test support: an HTTP server with a small application, on a thread of its own, and a blocking
 * client. Everything fails the running cmocka test on its own. */
#pragma once

#include <stdatomic.h>

#include "base/buf.h"
#include "io/http_server.h"

#define RIG_BIG_BYTES 8388608

struct rig;

struct rig_counters {
    atomic_int requests;
    atomic_int refused;
    atomic_int closed_complete;
    atomic_int closed_incomplete;
    atomic_int drains;
    atomic_int held;          /* bodies of which no more is taken */
    atomic_int streams_ended; /* upgraded connections */
    atomic_int streams_broken;
    atomic_int max_queued; /* of one connection's output */
    atomic_int max_ahead;  /* of one connection's input */
};

struct rig_answer {
    int status;
    char head[4096];
    struct buf body;
    bool closed; /* the connection ended after it */
};

/* Starts it on a loopback port and, with unix_path, there too. certificate NULL: plain. */
struct rig *rig_start(const struct http_server_limits *limits,
                      const char *unix_path,
                      const char *certificate,
                      const char *key);
void rig_stop(struct rig *rig);
struct rig_counters *rig_counters(struct rig *rig);
int rig_port(const struct rig *rig);
/* Waits until *counter reaches value. */
void rig_wait(const atomic_int *counter, int value);

/* A blocking connection with a time limit on every read and write. */
int rig_connect(const struct rig *rig);
int rig_connect_unix(const char *path);
void rig_send(int fd, const char *text);
void rig_send_bytes(int fd, struct span bytes);
/* Reads one answer; `left` keeps what came beyond it between calls. */
void rig_read_answer(int fd, struct buf *left, bool to_head, struct rig_answer *ret_answer);
void rig_answer_done(struct rig_answer *answer);
/* Reads until the end of the stream (a reset counts as one: true is returned then). */
bool rig_read_to_end(int fd, struct buf *out);
/* The byte at a position of the application's big answers. */
uint8_t rig_pattern(uint64_t position);
