#include "cli/rest.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/id.h"
#include "cli/config.h"
#include "cli/rest_private.h"

#define RESEND_FOR_MS        15000
#define RESEND_PAUSE_MS      200
#define LONGEST_WAIT_MS      60000
#define UPLOAD_BUFFER_BYTES  262144L
#define RECEIVE_BUFFER_BYTES 131072L

static int rest_make(struct rest **ret, struct error *err)
{
    struct rest *r = calloc(1, sizeof(*r));

    if (r != NULL && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        r->multi = curl_multi_init();
    }
    if (r == NULL || r->multi == NULL) {
        free(r);
        return error_set(err, ENOMEM, "out of memory");
    }
    r->signal_fd = -1;
    *ret = r;
    return 0;
}

int rest_new(const struct config *c, int signal_fd, struct rest **ret, struct error *err)
{
    int r = rest_make(ret, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf((*ret)->url, sizeof((*ret)->url), "%s", c->url);
    (void)snprintf((*ret)->key, sizeof((*ret)->key), "%s", c->key);
    (void)snprintf((*ret)->ca_file, sizeof((*ret)->ca_file), "%s", c->ca_file);
    (*ret)->signal_fd = signal_fd;
    return 0;
}

int rest_new_unix(const char *socket_path, struct rest **ret, struct error *err)
{
    int r = rest_make(ret, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf((*ret)->url, sizeof((*ret)->url), "http://node");
    (void)snprintf((*ret)->socket_path, sizeof((*ret)->socket_path), "%s", socket_path);
    return 0;
}

void rest_free(struct rest *r)
{
    if (r == NULL) {
        return;
    }
    json_decref(r->last_error);
    (void)curl_multi_cleanup(r->multi);
    free(r->waited);
    explicit_bzero(r->key, sizeof(r->key));
    free(r);
}

void rest_set_signal_fd(struct rest *r, int signal_fd)
{
    r->signal_fd = signal_fd;
}

bool rest_may_have_arrived(const struct rest *r)
{
    return r->may_have_arrived;
}

bool rest_distrusts(const struct rest *r)
{
    return r->distrusts;
}

const json_t *rest_last_error(const struct rest *r)
{
    return r->last_error;
}

const char *rest_url(const struct rest *r)
{
    return r->url;
}

static size_t on_body(char *bytes, size_t size, size_t count, void *arg)
{
    struct rest_transfer *t = arg;
    struct span piece = span_make(bytes, size * count);
    long status = 0;

    (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
    t->status = (int)status;
    if (t->on_data != NULL && status >= 200 && status < 300) {
        int taken = t->on_data(t->arg, piece);

        t->rest->has_news = true;
        t->paused = taken == REST_PAUSE;
        return taken == REST_PAUSE ? CURL_WRITEFUNC_PAUSE : taken < 0 ? 0 : piece.n;
    }
    buf_put(&t->body, piece);
    return buf_error(&t->body) == 0 ? piece.n : 0;
}

static size_t on_read(char *to, size_t size, size_t count, void *arg)
{
    struct rest_transfer *t = arg;
    ssize_t n = t->request->on_read(t->arg, to, size * count);

    t->rest->has_news = true;
    t->paused = n == REST_READ_LATER;
    return n == REST_READ_LATER ? CURL_READFUNC_PAUSE : n < 0 ? CURL_READFUNC_ABORT : (size_t)n;
}

static void keep_header(struct span line, const char *name, char *out)
{
    size_t colon = span_find(line, 0, ':');
    struct span value = span_skip(line, colon + 1);

    if (!span_equals_nocase(span_head(line, colon), name)) {
        return;
    }
    while (value.n > 0 && value.p[0] == ' ') {
        value = span_skip(value, 1);
    }
    while (value.n > 0 && value.p[value.n - 1] <= ' ') {
        value = span_head(value, value.n - 1);
    }
    (void)span_copy_str(value, out, REST_HEADER_VALUE);
}

static size_t on_header(char *bytes, size_t size, size_t count, void *arg)
{
    struct rest_transfer *t = arg;
    struct span line = span_make(bytes, size * count);

    keep_header(line, "X-Space-Next-Offset", t->next_offset);
    keep_header(line, "X-Space-End", t->end);
    keep_header(line, "Retry-After", t->retry_after);
    return line.n;
}

static void add_header(struct rest_transfer *t, const char *name, const char *value)
{
    char line[CONFIG_KEY_SIZE + 64];
    struct curl_slist *longer;

    (void)snprintf(line, sizeof(line), "%s: %s", name, value);
    longer = curl_slist_append(t->headers, line);
    if (longer != NULL) {
        t->headers = longer;
    }
}

static int set_body(struct rest_transfer *t, const struct rest_request *q)
{
    t->sent = buf_make(REST_MAX_BODY);
    if (q->json != NULL) {
        _cleanup_free_ char *text = json_dumps(q->json, JSON_COMPACT);

        if (text == NULL) {
            return -ENOMEM;
        }
        buf_put_str(&t->sent, text);
        add_header(t, "Content-Type", "application/json");
    } else {
        buf_put(&t->sent, q->raw);
        add_header(t, "Content-Type", "application/octet-stream");
    }
    return buf_error(&t->sent);
}

static void set_headers(const struct rest *r, struct rest_transfer *t, const struct rest_request *q)
{
    char id[ID_SIZE];

    if (r->key[0] != '\0') {
        char value[CONFIG_KEY_SIZE + 8];

        (void)snprintf(value, sizeof(value), "Bearer %s", r->key);
        add_header(t, "Authorization", value);
        explicit_bzero(value, sizeof(value));
    }
    if (q->last_event_id != NULL && q->last_event_id[0] != '\0') {
        add_header(t, "Last-Event-ID", q->last_event_id);
    }
    if (q->idempotent && id_make("ik", id) == 0) {
        add_header(t, "Idempotency-Key", id);
    }
    if (q->content_type != NULL) {
        add_header(t, "Content-Type", q->content_type);
    }
    add_header(t, "Expect", ""); /* the server answers at once when it does not want a body */
}

static void set_limits(CURL *easy, const struct rest_request *q)
{
    (void)curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)q->timeout_ms);
    if (q->silence_ms > 0) {
        (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, (long)(q->silence_ms / 1000));
    }
}

void rest_set_connection(const struct rest *r, struct rest_transfer *t)
{
    CURL *easy = t->easy;

    (void)curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, REST_CONNECT_TIMEOUT_MS);
    (void)curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t->problem);
    (void)curl_easy_setopt(easy, CURLOPT_PRIVATE, t);
    if (r->ca_file[0] != '\0') {
        (void)curl_easy_setopt(easy, CURLOPT_CAINFO, r->ca_file);
    }
    if (r->socket_path[0] != '\0') {
        (void)curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, r->socket_path);
        (void)curl_easy_setopt(easy, CURLOPT_PROXY, "");
    }
}

/* A body that the caller gives piece by piece. It cannot be given twice, so it does not go on a
 * connection that the server may have closed meanwhile. */
static void set_upload(struct rest_transfer *t, const struct rest_request *q)
{
    (void)curl_easy_setopt(t->easy, CURLOPT_FRESH_CONNECT, 1L);
    (void)curl_easy_setopt(t->easy, CURLOPT_UPLOAD, 1L);
    (void)curl_easy_setopt(t->easy, CURLOPT_READFUNCTION, on_read);
    (void)curl_easy_setopt(t->easy, CURLOPT_READDATA, t);
    (void)curl_easy_setopt(t->easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->read_length);
    (void)curl_easy_setopt(t->easy, CURLOPT_UPLOAD_BUFFERSIZE, UPLOAD_BUFFER_BYTES);
}

static int set_options(const struct rest *r, struct rest_transfer *t, const struct rest_request *q)
{
    _cleanup_buf_ struct buf url = buf_make(0);
    bool has_body =
        q->json != NULL || q->raw.n > 0 || (strcmp(q->method, "POST") == 0 && q->on_read == NULL);
    CURL *easy = t->easy;

    buf_printf(&url, "%s%s", r->url, q->path);
    if (buf_error(&url) < 0 || (has_body && set_body(t, q) < 0)) {
        return -ENOMEM;
    }
    rest_set_connection(r, t);
    set_headers(r, t, q);
    set_limits(easy, q);
    if (q->on_read != NULL) {
        set_upload(t, q);
    }
    (void)curl_easy_setopt(easy, CURLOPT_URL, buf_str(&url));
    (void)curl_easy_setopt(easy, CURLOPT_USERAGENT, "space/" SPACE_VERSION);
    (void)curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, RECEIVE_BUFFER_BYTES);
    (void)curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->headers);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(easy, CURLOPT_HEADERDATA, t);
    if (has_body) {
        (void)curl_easy_setopt(easy, CURLOPT_POST, 1L);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)t->sent.n);
        (void)curl_easy_setopt(easy, CURLOPT_POSTFIELDS, buf_str(&t->sent));
    }
    if (strcmp(q->method, "GET") != 0) {
        (void)curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, q->method);
    }
    return 0;
}

int rest_start(struct rest *r,
               struct rest_transfer *t,
               const struct rest_request *request,
               struct error *err)
{
    *t = (struct rest_transfer){.rest = r,
                                .body = buf_make(REST_MAX_BODY),
                                .request = request,
                                .on_data = request->on_data,
                                .arg = request->arg};
    t->easy = curl_easy_init();
    if (t->easy == NULL || set_options(r, t, request) < 0 ||
        curl_multi_add_handle(r->multi, t->easy) != CURLM_OK) {
        rest_finish(r, t);
        return error_set(err, ENOMEM, "cannot start a request");
    }
    t->active = true;
    return 0;
}

void rest_finish(struct rest *r, struct rest_transfer *t)
{
    if (t->easy != NULL) {
        (void)curl_multi_remove_handle(r->multi, t->easy);
        curl_easy_cleanup(t->easy);
    }
    curl_slist_free_all(t->headers);
    buf_done(&t->sent);
    buf_done(&t->body);
    *t = (struct rest_transfer){0};
}

/* Marks the transfers that have ended; returns whether there was one. */
static bool take_ended(struct rest *r)
{
    bool any = false;
    CURLMsg *m;
    int left;

    while ((m = curl_multi_info_read(r->multi, &left)) != NULL) {
        void *private = NULL;
        struct rest_transfer *t;
        long status = 0;

        if (m->msg != CURLMSG_DONE ||
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &private) != CURLE_OK) {
            continue;
        }
        t = private;
        t->result = (int)m->data.result;
        (void)curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &status);
        t->status = (int)status;
        t->active = false;
        t->done = true;
        any = true;
    }
    return any;
}

/* Room for the descriptors of one rest_poll. */
static struct curl_waitfd *get_waited(struct rest *r, unsigned int count)
{
    if (count > r->waited_room) {
        struct curl_waitfd *more = realloc(r->waited, (size_t)count * 2 * sizeof(*more));

        if (more == NULL) {
            return NULL;
        }
        r->waited = more;
        r->waited_room = count * 2;
    }
    return r->waited;
}

void rest_resume(struct rest_transfer *t)
{
    if (t->active && t->paused) {
        t->paused = false;
        (void)curl_easy_pause(t->easy, CURLPAUSE_CONT);
    }
}

int rest_poll(struct rest *r, struct pollfd *fds, unsigned int count, int timeout_ms)
{
    struct curl_waitfd *extra = get_waited(r, count);
    int64_t end = clock_monotonic_ms() + timeout_ms;
    int running;
    int ready = 0;

    if (extra == NULL && count > 0) {
        return 0;
    }
    for (unsigned int i = 0; i < count; i++) {
        extra[i] = (struct curl_waitfd){
            .fd = fds[i].fd,
            .events = (short)((fds[i].events & POLLIN ? CURL_WAIT_POLLIN : 0) |
                              (fds[i].events & POLLOUT ? CURL_WAIT_POLLOUT : 0)),
        };
        fds[i].revents = 0;
    }
    for (;;) {
        int64_t left = end - clock_monotonic_ms();

        (void)curl_multi_perform(r->multi, &running);
        if (take_ended(r) || r->has_news || (timeout_ms >= 0 && left <= 0)) {
            r->has_news = false;
            return 0;
        }
        if (timeout_ms < 0 || left > LONGEST_WAIT_MS) {
            left = LONGEST_WAIT_MS;
        }
        (void)curl_multi_poll(r->multi, extra, count, (int)left, NULL);
        for (unsigned int i = 0; i < count; i++) {
            fds[i].revents = extra[i].revents;
            ready += extra[i].revents != 0 ? 1 : 0;
        }
        if (ready > 0) {
            (void)curl_multi_perform(r->multi, &running);
            (void)take_ended(r);
            return ready;
        }
    }
}

int rest_refuse(struct rest *r, const struct rest_transfer *t, struct error *err)
{
    json_t *root = json_loadb((const char *)t->body.p, t->body.n, 0, NULL);
    const json_t *envelope = json_object_get(root, "error");
    const char *code = json_string_value(json_object_get(envelope, "code"));
    const char *message = json_string_value(json_object_get(envelope, "message"));
    enum error_code known = code != NULL ? error_code_find(code) : ERROR_NONE;

    if (message != NULL) {
        (void)error_set(err, EREMOTEIO, "%s", message);
    } else {
        (void)error_set(err, EREMOTEIO, "the server answered with HTTP status %d", t->status);
    }
    if (err != NULL && known != ERROR_NONE) {
        err->code = known;
    }
    json_decref(r->last_error);
    r->last_error = envelope != NULL ? json_deep_copy(envelope) : NULL;
    json_decref(root);
    return -EREMOTEIO;
}

/* Why the other end cannot be reached: libcurl's own text repeats the address, and gives unix
 * sockets a host and a port. */
static const char *connect_problem(const struct rest *r, const struct rest_transfer *t)
{
    long number = 0;

    if (t->result == CURLE_COULDNT_CONNECT &&
        curl_easy_getinfo(t->easy, CURLINFO_OS_ERRNO, &number) == CURLE_OK && number != 0) {
        return strerror((int)number);
    }
    if (t->result == CURLE_SSL_CONNECT_ERROR &&
        strstr(t->problem, "wrong version number") != NULL) {
        return "what answers speaks no TLS: is it http://?";
    }
    if (t->problem[0] != '\0' && r->socket_path[0] == '\0') {
        return t->problem;
    }
    return curl_easy_strerror((CURLcode)t->result);
}

int rest_result(struct rest *r, const struct rest_transfer *t, struct error *err)
{
    if (t->result == CURLE_OK || (t->status >= 300 && t->result == CURLE_WRITE_ERROR)) {
        return t->status >= 200 && t->status < 300 ? 0 : rest_refuse(r, t, err);
    }
    r->distrusts =
        t->result == CURLE_PEER_FAILED_VERIFICATION || t->result == CURLE_SSL_CACERT_BADFILE;
    if (r->distrusts) {
        return error_set(err, ENOTCONN, "cannot trust %.120s: %.150s", r->url, t->problem);
    }
    return error_set(err, ENOTCONN, "cannot reach %.120s: %.150s",
                     r->socket_path[0] != '\0' ? r->socket_path : r->url, connect_problem(r, t));
}

/* Waits for one transfer. -EINTR when the signal descriptor is readable. */
static int wait_transfer(struct rest *r, const struct rest_transfer *t, struct error *err)
{
    while (!t->done) {
        struct pollfd fd = {.fd = r->signal_fd, .events = POLLIN};

        if (rest_poll(r, &fd, r->signal_fd >= 0 ? 1 : 0, -1) > 0) {
            return error_set(err, EINTR, "interrupted");
        }
    }
    return 0;
}

static bool was_sent(const struct rest_transfer *t)
{
    long sent = 0;

    return curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &sent) == CURLE_OK && sent > 0;
}

static bool may_resend(const struct rest_request *q, const struct rest_transfer *t)
{
    bool repeatable = q->idempotent || strcmp(q->method, "GET") == 0;

    if (t->result == CURLE_COULDNT_CONNECT || t->result == CURLE_OPERATION_TIMEDOUT) {
        return false;
    }
    return repeatable && (t->result == CURLE_GOT_NOTHING || t->result == CURLE_RECV_ERROR ||
                          t->result == CURLE_SEND_ERROR || t->result == CURLE_PARTIAL_FILE);
}

/* The same request again, with the same Idempotency-Key, on a connection of its own. */
static int resend(struct rest *r, struct rest_transfer *t, struct error *err)
{
    int64_t end = clock_monotonic_ms() + RESEND_FOR_MS;

    do {
        struct pollfd fd = {.fd = r->signal_fd, .events = POLLIN};

        (void)curl_multi_remove_handle(r->multi, t->easy);
        if (rest_poll(r, &fd, r->signal_fd >= 0 ? 1 : 0, RESEND_PAUSE_MS) > 0) {
            return error_set(err, EINTR, "interrupted");
        }
        buf_clear(&t->body);
        t->done = false;
        t->status = 0;
        if (curl_multi_add_handle(r->multi, t->easy) != CURLM_OK) {
            return error_set(err, ENOMEM, "cannot start a request");
        }
        if (wait_transfer(r, t, err) < 0) {
            return -EINTR;
        }
    } while (t->result != CURLE_OK && t->result != CURLE_PEER_FAILED_VERIFICATION &&
             clock_monotonic_ms() < end);
    return 0;
}

static int
parse_answer(const struct rest *r, const struct rest_transfer *t, json_t **ret, struct error *err)
{
    json_error_t why;
    json_t *root;

    if (t->body.n == 0) {
        *ret = NULL;
        return 0;
    }
    root = json_loadb((const char *)t->body.p, t->body.n, JSON_ALLOW_NUL, &why);
    if (root == NULL) {
        return error_set(err, EBADMSG, "%.120s gave an answer that is not JSON: %.100s", r->url,
                         why.text);
    }
    *ret = root;
    return 0;
}

int rest_call(struct rest *r,
              const struct rest_request *request,
              json_t **ret_json,
              int *ret_status,
              struct error *err)
{
    struct rest_transfer t;
    json_t *json = NULL;
    int result = rest_start(r, &t, request, err);

    if (result < 0) {
        return result;
    }
    result = wait_transfer(r, &t, err);
    r->may_have_arrived = was_sent(&t);
    if (result == 0 && may_resend(request, &t)) {
        result = resend(r, &t, err);
    }
    if (result == 0) {
        result = rest_result(r, &t, err);
    }
    if (result == 0 && ret_json != NULL) {
        result = parse_answer(r, &t, &json, err);
    }
    if (result == 0) {
        if (ret_json != NULL) {
            *ret_json = json;
        }
        if (ret_status != NULL) {
            *ret_status = t.status;
        }
    }
    rest_finish(r, &t);
    return result;
}

static void put_encoded(struct buf *out, const char *text)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~";

    for (const char *c = text; *c != '\0'; c++) {
        if (strchr(plain, *c) != NULL) {
            buf_put(out, span_make(c, 1));
        } else {
            buf_printf(out, "%%%02X", (unsigned int)(unsigned char)*c);
        }
    }
}

void rest_put_query(struct buf *path, const char *key, const char *value)
{
    buf_put_str(path, span_find(buf_span(path), 0, '?') == path->n ? "?" : "&");
    put_encoded(path, key);
    buf_put_str(path, "=");
    put_encoded(path, value);
}

void rest_put_segment(struct buf *path, const char *segment)
{
    buf_put_str(path, "/");
    put_encoded(path, segment);
}
