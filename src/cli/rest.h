/* HTTP calls to the API (or to a unix socket of the node) on libcurl.
 *
 * A call is a struct rest_transfer that runs inside rest_poll; several run at once, and rest_poll
 * also watches other descriptors, which is how signals and standard input are served while output
 * streams. rest_call is the plain blocking form. Connections are kept alive and reused.
 *
 * Failures in struct error carry in `errnum`: EREMOTEIO the API refused (the envelope is kept for
 * rest_last_error), ENOTCONN it cannot be reached or the connection broke, EINTR the signal
 * descriptor became readable. */
#pragma once

#include <errno.h>
#include <stdint.h>

#include <sys/types.h>

#include <jansson.h>

#include "base/buf.h"
#include "base/error.h"

struct config;
struct curl_slist;
struct pollfd;
struct rest;
struct rest_transfer;

#define REST_MAX_BODY     (64U * 1024U * 1024U)
#define REST_HEADER_VALUE 64
#define REST_REQUEST_SIZE 600 /* path and query, where no path of a guest is in it */
#define REST_PAUSE        1
#define REST_READ_LATER   (-EAGAIN)

struct rest_request {
    const char *method;
    const char *path;          /* path and query */
    const json_t *json;        /* body, or NULL */
    struct span raw;           /* body when json is NULL; copied */
    const char *last_event_id; /* sent when not NULL and not empty */
    bool idempotent;           /* sends a fresh Idempotency-Key: a lost call may be sent again */
    int64_t timeout_ms;        /* 0: none */
    int64_t silence_ms;        /* gives up when no byte comes for so long; 0: never */
    /* A streamed body of a 2xx answer; NULL collects it. A negative result ends the transfer;
     * REST_PAUSE takes nothing: the same piece comes again after rest_resume. */
    int (*on_data)(void *arg, struct span piece);
    /* A body that is streamed to the server: bytes put into `to`, 0 at its end, REST_READ_LATER
     * when there is nothing now (rest_resume asks again), or negative to give up. */
    ssize_t (*on_read)(void *arg, void *to, size_t room);
    int64_t read_length;      /* of on_read's body; -1: not known */
    const char *content_type; /* of on_read's body */
    void *arg;
};

struct rest_transfer {
    struct rest *rest;
    void *easy;
    struct curl_slist *headers;
    struct buf sent;
    struct buf body; /* collected answer */
    const struct rest_request *request;
    int (*on_data)(void *arg, struct span piece);
    void *arg;
    int status; /* 0 until an answer begins */
    bool active;
    bool done;
    bool paused;
    int result;                          /* CURLcode when done */
    char next_offset[REST_HEADER_VALUE]; /* X-Space-Next-Offset */
    char end[REST_HEADER_VALUE];         /* X-Space-End */
    char retry_after[REST_HEADER_VALUE];
    char problem[256]; /* libcurl's text */
};

/* The API that c names. `signal_fd`: interrupts rest_call when readable, -1 for none; borrowed. */
int rest_new(const struct config *c, int signal_fd, struct rest **ret, struct error *err)
    _must_check_;
/* The node behind a unix socket, without a key. */
int rest_new_unix(const char *socket_path, struct rest **ret, struct error *err) _must_check_;
void rest_free(struct rest *r);

static inline void cleanup_rest(struct rest **r)
{
    rest_free(*r);
}
#define _cleanup_rest_ _cleanup_(cleanup_rest)

void rest_set_signal_fd(struct rest *r, int signal_fd);

/* Starts a transfer; t must stay where it is until rest_finish. */
int rest_start(struct rest *r,
               struct rest_transfer *t,
               const struct rest_request *request,
               struct error *err) _must_check_;
/* Lets a transfer go on that its on_data or on_read has paused. */
void rest_resume(struct rest_transfer *t);
/* Runs transfers until one ends, its on_data or on_read was called, a descriptor of `fds` is ready
 * (POLLIN, POLLOUT), or the time is over. Returns how many of `fds` are ready. */
int rest_poll(struct rest *r, struct pollfd *fds, unsigned int count, int timeout_ms);
/* What a transfer came to: 0 for 2xx, else err as described above. */
int rest_result(struct rest *r, const struct rest_transfer *t, struct error *err) _must_check_;
/* Ends the transfer (running or not) and frees what it holds. */
void rest_finish(struct rest *r, struct rest_transfer *t);

/* One call, start to end. ret_json (may be NULL) gets the parsed body; NULL for an empty one. A
 * call that may be repeated (GET, or `idempotent`) is sent again for a while when its connection
 * breaks. ret_status may be NULL. */
int rest_call(struct rest *r,
              const struct rest_request *request,
              json_t **ret_json,
              int *ret_status,
              struct error *err) _must_check_;
/* Whether the last rest_call may have reached the server, although it failed. */
bool rest_may_have_arrived(const struct rest *r);
/* Whether the last failure was a certificate that is not trusted. */
bool rest_distrusts(const struct rest *r);
/* The "error" object of the last refusal (borrowed), or NULL. */
const json_t *rest_last_error(const struct rest *r);
/* "http://host:port", for messages. */
const char *rest_url(const struct rest *r);
/* Appends ?key=value (or &key=value), percent-encoded. */
void rest_put_query(struct buf *path, const char *key, const char *value);
/* Appends a path segment, percent-encoded. */
void rest_put_segment(struct buf *path, const char *segment);

static inline void cleanup_json(json_t **j)
{
    json_decref(*j);
}
#define _cleanup_json_ _cleanup_(cleanup_json)
