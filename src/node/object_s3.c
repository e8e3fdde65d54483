/* Objects in a bucket, through libcurl: requests signed by it (SigV4), with the SHA-256 of the body
 * in the signature, so that the server refuses what did not arrive whole.
 *
 * One handle, and so one connection that is kept, per store. What may pass (no connection, 429,
 * 5xx, a stalled transfer) is tried again, later each time. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <curl/curl.h>

#include "base/clock.h"
#include "base/id.h"
#include "node/object_backend.h"
#include "node/object_chunk.h"
#include "wire/s3_list.h"

#define CONNECT_MS  10000L
#define STALL_BYTES 1024L /* per second, … */
#define STALL_S     30L
#define TOTAL_S     600L
#define ATTEMPTS    4U
#define BACKOFF_MS  200U
#define ERROR_MAX   65536U
#define LIST_MAX    (8U * 1024U * 1024U)
#define URL_SIZE    4096U
/* From here on in parts: a transfer that breaks costs one part. */
#define PART_BYTES (8U * 1024U * 1024U)
#define PARTS_MAX  1024U
#define ABORTS_MAX 100

struct object_s3 {
    const struct object_place *place;
    CURL *curl;
    struct buf body; /* of the answer */
    char etag[128];
    char date[64];
    uint64_t length; /* Content-Length of a HEAD */
};

struct s3_request {
    const char *method;
    const char *key;   /* "": the bucket */
    const char *query; /* sorted, escaped; "": none */
    struct span body;
    size_t max;
};

/* ---- one attempt ---- */

static size_t on_body(char *bytes, size_t one, size_t n, void *arg)
{
    struct object_s3 *s = arg;

    buf_put(&s->body, span_make(bytes, one * n));
    return buf_error(&s->body) == 0 ? one * n : 0;
}

static void take_header(struct span line, const char *name, char *out, size_t size)
{
    size_t n = strlen(name);

    if (line.n > n && span_equals_nocase(span_head(line, n), name)) {
        line = span_skip(line, n);
        while (line.n > 0 && line.p[0] == ' ') {
            line = span_skip(line, 1);
        }
        while (line.n > 0 && (line.p[line.n - 1] == '\r' || line.p[line.n - 1] == '\n')) {
            line = span_head(line, line.n - 1);
        }
        if (span_copy_str(line, out, size) < 0) {
            out[0] = '\0';
        }
    }
}

static size_t on_header(char *bytes, size_t one, size_t n, void *arg)
{
    struct object_s3 *s = arg;
    struct span line = span_make(bytes, one * n);

    take_header(line, "etag:", s->etag, sizeof(s->etag));
    take_header(line, "date:", s->date, sizeof(s->date));
    return one * n;
}

static int format_url(const struct object_s3 *s, const struct s3_request *rq, char url[URL_SIZE])
{
    const struct object_place *p = s->place;
    int n = snprintf(url, URL_SIZE, "%s/%s%s%s%s%s%s%s", p->endpoint, p->bucket,
                     rq->key[0] != '\0' ? "/" : "", rq->key[0] != '\0' ? p->prefix : "",
                     rq->key[0] != '\0' && p->prefix[0] != '\0' ? "/" : "", rq->key,
                     rq->query[0] != '\0' ? "?" : "", rq->query);

    return n > 0 && n < (int)URL_SIZE ? 0 : -ENAMETOOLONG;
}

static struct curl_slist *make_headers(const struct object_s3 *s, const struct s3_request *rq)
{
    struct curl_slist *list = NULL;
    struct object_sum sum;
    char text[OBJECT_SUM_TEXT];
    char line[sizeof(s->place->session_token) + 40];

    if (object_sum_of(rq->body, &sum) < 0) {
        return NULL;
    }
    object_sum_format(&sum, text);
    (void)snprintf(line, sizeof(line), "x-amz-content-sha256: %s", text);
    list = curl_slist_append(list, line);
    if (s->place->session_token[0] != '\0') {
        (void)snprintf(line, sizeof(line), "x-amz-security-token: %s", s->place->session_token);
        list = curl_slist_append(list, line);
    }
    list = curl_slist_append(list, "Expect:");
    return curl_slist_append(list, "Content-Type: application/octet-stream");
}

static void set_body(CURL *c, const struct s3_request *rq)
{
    if (strcmp(rq->method, "HEAD") == 0) {
        (void)curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    } else if (strcmp(rq->method, "PUT") == 0 || strcmp(rq->method, "POST") == 0) {
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)rq->body.n);
        (void)curl_easy_setopt(c, CURLOPT_POSTFIELDS,
                               rq->body.n > 0 ? (const char *)rq->body.p : "");
        (void)curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, rq->method);
    } else {
        (void)curl_easy_setopt(c, CURLOPT_HTTPGET, 1L);
        (void)curl_easy_setopt(c, CURLOPT_CUSTOMREQUEST, rq->method);
    }
}

static void set_limits(CURL *c)
{
    (void)curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    (void)curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    (void)curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_MS);
    (void)curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, STALL_BYTES);
    (void)curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, STALL_S);
    (void)curl_easy_setopt(c, CURLOPT_TIMEOUT, TOTAL_S);
}

static CURLcode perform(struct object_s3 *s, const struct s3_request *rq, long *ret_status)
{
    const struct object_place *p = s->place;
    struct curl_slist *headers = make_headers(s, rq);
    char user[sizeof(p->access_key) + sizeof(p->secret_key) + 2];
    char sign[sizeof(p->region) + 32];
    char url[URL_SIZE];
    curl_off_t length = 0;
    CURLcode code;

    if (headers == NULL || format_url(s, rq, url) < 0) {
        curl_slist_free_all(headers);
        return CURLE_OUT_OF_MEMORY;
    }
    curl_easy_reset(s->curl);
    set_limits(s->curl);
    (void)snprintf(user, sizeof(user), "%s:%s", p->access_key, p->secret_key);
    (void)snprintf(sign, sizeof(sign), "aws:amz:%s:s3", p->region);
    (void)curl_easy_setopt(s->curl, CURLOPT_URL, url);
    (void)curl_easy_setopt(s->curl, CURLOPT_USERPWD, user);
    (void)curl_easy_setopt(s->curl, CURLOPT_AWS_SIGV4, sign);
    (void)curl_easy_setopt(s->curl, CURLOPT_HTTPHEADER, headers);
    (void)curl_easy_setopt(s->curl, CURLOPT_WRITEFUNCTION, on_body);
    (void)curl_easy_setopt(s->curl, CURLOPT_WRITEDATA, s);
    (void)curl_easy_setopt(s->curl, CURLOPT_HEADERFUNCTION, on_header);
    (void)curl_easy_setopt(s->curl, CURLOPT_HEADERDATA, s);
    set_body(s->curl, rq);
    buf_done(&s->body);
    s->body = buf_make(rq->max > ERROR_MAX ? rq->max : ERROR_MAX);
    s->etag[0] = '\0';
    s->date[0] = '\0';
    code = curl_easy_perform(s->curl);
    (void)curl_easy_getinfo(s->curl, CURLINFO_RESPONSE_CODE, ret_status);
    (void)curl_easy_getinfo(s->curl, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &length);
    s->length = length > 0 ? (uint64_t)length : 0;
    explicit_bzero(user, sizeof(user));
    curl_slist_free_all(headers);
    return code;
}

/* ---- attempts ---- */

static bool may_pass(CURLcode code, long status)
{
    if (code != CURLE_OK) {
        return code != CURLE_WRITE_ERROR && code != CURLE_OUT_OF_MEMORY &&
               code != CURLE_URL_MALFORMAT && code != CURLE_PEER_FAILED_VERIFICATION;
    }
    return status == 408 || status == 429 || status >= 500;
}

static int say(const struct object_s3 *s, CURLcode code, long status, struct error *err)
{
    char name[64] = "no reason given";

    if (code == CURLE_WRITE_ERROR) {
        return error_set(err, EBADMSG, "the object store's answer is longer than it may be");
    }
    if (code != CURLE_OK) {
        bool is_ours = code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_URL_MALFORMAT;

        return error_set_code(err, is_ours ? ERROR_FAILED_PRECONDITION : ERROR_SERVICE_UNAVAILABLE,
                              is_ours ? "object_store" : NULL, "the object store at %.100s: %s",
                              s->place->endpoint, curl_easy_strerror(code));
    }
    (void)s3_text_parse(buf_span(&s->body), "Code", name, sizeof(name));
    if (status >= 500 || status == 429 || status == 408) {
        return error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                              "the object store answered status %ld (%s)", status, name);
    }
    return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                          "the object store refused with status %ld (%s)", status, name);
}

static void pause_before(unsigned int attempt)
{
    unsigned int ms =
        BACKOFF_MS << (2U * (attempt - 1U)); /* 0.2, 0.8, 3.2 s, and up to half more */
    uint32_t more = 0;
    struct timespec ts;

    (void)random_bytes(&more, sizeof(more));
    ms += more % (ms / 2);
    ts = (struct timespec){ms / 1000U, (long)(ms % 1000U) * 1000000L};
    (void)nanosleep(&ts, NULL);
}

/* The status, if it is 2xx or 404; else -errno. */
static int run(struct object_s3 *s, const struct s3_request *rq, struct error *err)
{
    unsigned int attempts = s->place->attempts > 0 ? s->place->attempts : ATTEMPTS;
    long status = 0;
    CURLcode code = CURLE_OK;

    for (unsigned int i = 0; i < attempts; i++) {
        if (i > 0) {
            pause_before(i);
        }
        status = 0;
        code = perform(s, rq, &status);
        if (!may_pass(code, status)) {
            break;
        }
    }
    if (code == CURLE_OK && ((status >= 200 && status < 300) || status == 404)) {
        return (int)status;
    }
    return say(s, code, status, err);
}

static int missing_bucket(const struct object_s3 *s, struct error *err)
{
    return error_set_code(err, ERROR_FAILED_PRECONDITION, "object_store",
                          "the object store has no bucket %s", s->place->bucket);
}

/* ---- in parts ---- */

static int begin_parts(struct object_s3 *s, const char *key, char id[256], struct error *err)
{
    struct s3_request rq = {.method = "POST", .key = key, .query = "uploads="};
    int r = run(s, &rq, err);
    char *escaped;

    if (r < 0 || r == 404) {
        return r < 0 ? r : missing_bucket(s, err);
    }
    if (s3_text_parse(buf_span(&s->body), "UploadId", id, 256) < 0) {
        return error_set(err, EBADMSG, "the object store names no upload");
    }
    escaped = curl_easy_escape(s->curl, id, 0);
    r = escaped == NULL || snprintf(id, 256, "%s", escaped) >= 256 ? -ENOMEM : 0;
    curl_free(escaped);
    return r < 0 ? error_set(err, ENOMEM, "no memory") : 0;
}

static int put_parts(struct object_s3 *s,
                     const char *key,
                     const char *id,
                     struct span bytes,
                     struct buf *list,
                     struct error *err)
{
    char query[400];
    int r = 0;

    buf_put_str(list, "<CompleteMultipartUpload>");
    for (unsigned int n = 1; r >= 0 && bytes.n > 0 && n <= PARTS_MAX; n++) {
        struct s3_request rq = {.method = "PUT", .key = key, .query = query};

        rq.body = span_head(bytes, PART_BYTES);
        (void)snprintf(query, sizeof(query), "partNumber=%u&uploadId=%s", n, id);
        r = run(s, &rq, err);
        if (r == 404 || (r > 0 && s->etag[0] == '\0')) {
            return error_set(err, EIO, "the object store lost an upload");
        }
        buf_printf(list, "<Part><PartNumber>%u</PartNumber><ETag>%s</ETag></Part>", n, s->etag);
        bytes = span_skip(bytes, rq.body.n);
    }
    buf_put_str(list, "</CompleteMultipartUpload>");
    return r < 0 ? r : buf_error(list);
}

static int abort_upload(struct object_s3 *s, const char *key, const char *id, struct error *err)
{
    char query[300];
    struct s3_request rq = {.method = "DELETE", .key = key, .query = query};
    int n = snprintf(query, sizeof(query), "uploadId=%s", id);

    return n < (int)sizeof(query)
               ? run(s, &rq, err)
               : error_set(err, ENAMETOOLONG, "the object store's name of an upload is too long");
}

static int put_large(struct object_s3 *s, const char *key, struct span bytes, struct error *err)
{
    _cleanup_buf_ struct buf list = buf_make(PARTS_MAX * 256U);
    char id[256];
    char query[300];
    struct s3_request rq = {.key = key, .query = query};
    struct error ignored = {0};
    char name[64];
    int r = begin_parts(s, key, id, err);

    if (r < 0) {
        return r;
    }
    (void)snprintf(query, sizeof(query), "uploadId=%s", id);
    r = put_parts(s, key, id, bytes, &list, err);
    if (r >= 0) {
        rq.method = "POST";
        rq.body = buf_span(&list);
        r = run(s, &rq, err);
        /* A failure may come with status 200. */
        if (r == 404 ||
            (r > 0 && s3_text_parse(buf_span(&s->body), "Code", name, sizeof(name)) == 0)) {
            r = error_set_code(err, ERROR_SERVICE_UNAVAILABLE, NULL,
                               "the object store could not put the parts of an object together");
        }
    }
    if (r < 0) {
        (void)abort_upload(s, key, id, &ignored);
        return r;
    }
    return 0;
}

/* ---- the calls ---- */

static int s3_put(void *self, const char *key, struct span bytes, struct error *err)
{
    struct object_s3 *s = self;
    struct s3_request rq = {.method = "PUT", .key = key, .query = "", .body = bytes};
    int r;

    if (bytes.n > PART_BYTES) {
        return put_large(s, key, bytes, err);
    }
    r = run(s, &rq, err);
    return r == 404 ? missing_bucket(s, err) : r < 0 ? r : 0;
}

static int s3_get(void *self, const char *key, size_t max, struct buf *ret, struct error *err)
{
    struct object_s3 *s = self;
    struct s3_request rq = {.method = "GET", .key = key, .query = "", .max = max};
    int r = run(s, &rq, err);

    if (r < 0 || r == 404) {
        return r < 0 ? r : 0;
    }
    if (s->body.n > max) {
        return error_set(err, EBADMSG, "object %.100s is damaged: it is too long", key);
    }
    buf_put(ret, buf_span(&s->body));
    return buf_error(ret) < 0 ? error_set(err, ENOMEM, "no memory") : 1;
}

static int s3_has(void *self, const char *key, uint64_t *ret_bytes, struct error *err)
{
    struct object_s3 *s = self;
    struct s3_request rq = {.method = "HEAD", .key = key, .query = ""};
    int r = run(s, &rq, err);

    if (r < 0 || r == 404) {
        return r < 0 ? r : 0;
    }
    *ret_bytes = s->length;
    return 1;
}

static int s3_remove(void *self, const char *key, struct error *err)
{
    struct object_s3 *s = self;
    struct s3_request rq = {.method = "DELETE", .key = key, .query = ""};
    int r = run(s, &rq, err);

    return r < 0 ? r : 0;
}

/* The server's own time, for ages; ours where it says none. */
static int64_t time_of_server(const struct object_s3 *s)
{
    time_t t = s->date[0] != '\0' ? curl_getdate(s->date, NULL) : -1;

    return t > 0 ? (int64_t)t : clock_real_ms() / 1000;
}

static int
visit_page(struct object_s3 *s, struct s3_list *list, object_list_fn fn, void *arg, int *ret_visit)
{
    size_t skip = s->place->prefix[0] != '\0' ? strlen(s->place->prefix) + 1 : 0;
    int64_t now = time_of_server(s);
    struct s3_object object;
    int r;

    while ((r = s3_list_next(list, &object)) == 1) {
        struct object_entry entry = {.bytes = object.bytes};
        int64_t modified;

        if (clock_parse(object.modified, &modified) < 0 || strlen(object.key) <= skip) {
            return -EBADMSG;
        }
        entry.key = &object.key[skip];
        entry.age_seconds = now - modified / 1000;
        *ret_visit = fn(arg, &entry);
        if (*ret_visit < 0) {
            return 0;
        }
    }
    return r;
}

static int
format_query(struct object_s3 *s, const char *prefix, const char *token, char query[URL_SIZE])
{
    char whole[OBJECT_KEY_SIZE + 160];
    char *p;
    char *t;
    int n = -1;

    (void)snprintf(whole, sizeof(whole), "%s%s%s", s->place->prefix,
                   s->place->prefix[0] != '\0' ? "/" : "", prefix);
    p = curl_easy_escape(s->curl, whole, 0);
    t = curl_easy_escape(s->curl, token, 0);
    if (p != NULL && t != NULL) {
        n = snprintf(query, URL_SIZE, "%s%s%slist-type=2&prefix=%s",
                     token[0] != '\0' ? "continuation-token=" : "", t, token[0] != '\0' ? "&" : "",
                     p);
    }
    curl_free(p);
    curl_free(t);
    return n > 0 && n < (int)URL_SIZE - 512 ? 0 : -ENOMEM;
}

static int s3_list(void *self, const char *prefix, object_list_fn fn, void *arg, struct error *err)
{
    struct object_s3 *s = self;
    struct s3_list list = {.token = ""};
    int visit = 0;

    do {
        char query[URL_SIZE];
        struct s3_request rq = {.method = "GET", .key = "", .query = query, .max = LIST_MAX};
        _cleanup_buf_ struct buf page = buf_make(0);
        char token[S3_TOKEN_SIZE];
        int r = format_query(s, prefix, list.token, query);

        if (r < 0) {
            return error_set(err, -r, "no memory");
        }
        r = run(s, &rq, err);
        if (r < 0 || r == 404) {
            return r < 0 ? r : missing_bucket(s, err);
        }
        /* fn may use the store for something else. */
        page = s->body;
        s->body = buf_make(0);
        memcpy(token, list.token, sizeof(token));
        if (s3_list_parse(buf_span(&page), &list) < 0 ||
            visit_page(s, &list, fn, arg, &visit) < 0) {
            return error_set(err, EBADMSG, "the object store's list makes no sense");
        }
        if (visit >= 0 && list.is_truncated && strcmp(token, list.token) == 0) {
            return error_set(err, EBADMSG, "the object store's list has no end");
        }
        list.rest = span_make(NULL, 0);
    } while (visit >= 0 && list.is_truncated);
    return visit;
}

/* ---- uploads whose process was killed ---- */

/* A key of this store's, as it stands in a URL: NULL when it is not one. */
static const char *own_key(const struct object_s3 *s, const struct s3_upload *upload)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyz0123456789./";
    size_t skip = s->place->prefix[0] != '\0' ? strlen(s->place->prefix) + 1 : 0;
    const char *key = &upload->key[skip];

    if (strlen(upload->key) <= skip ||
        strncmp(upload->key, s->place->prefix, skip > 0 ? skip - 1 : 0) != 0 ||
        (skip > 0 && upload->key[skip - 1] != '/')) {
        return NULL;
    }
    return key[strspn(key, plain)] == '\0' && strlen(key) < OBJECT_KEY_SIZE ? key : NULL;
}

/* 1 when it is gone. */
static int
abort_old(struct object_s3 *s, const struct s3_upload *upload, int64_t before, struct error *err)
{
    const char *key = own_key(s, upload);
    int64_t initiated;
    char *id;
    int r;

    if (key == NULL || clock_parse(upload->initiated, &initiated) < 0 ||
        initiated / 1000 > before) {
        return 0;
    }
    id = curl_easy_escape(s->curl, upload->id, 0);
    r = id == NULL ? error_set(err, ENOMEM, "no memory") : abort_upload(s, key, id, err);
    curl_free(id);
    return r < 0 ? r : 1;
}

static int s3_abort_cut(void *self, const char *prefix, int64_t keep_seconds, struct error *err)
{
    struct object_s3 *s = self;
    char whole[OBJECT_KEY_SIZE + 160];
    char query[URL_SIZE];
    struct s3_request rq = {.method = "GET", .key = "", .query = query, .max = LIST_MAX};
    _cleanup_buf_ struct buf page = buf_make(0);
    struct s3_upload upload;
    struct s3_list list;
    int64_t before;
    int count = 0;
    int failure = 0;
    char *escaped;
    int r;

    (void)snprintf(whole, sizeof(whole), "%s%s%s", s->place->prefix,
                   s->place->prefix[0] != '\0' ? "/" : "", prefix);
    escaped = curl_easy_escape(s->curl, whole, 0);
    if (escaped == NULL) {
        return error_set(err, ENOMEM, "no memory");
    }
    (void)snprintf(query, sizeof(query), "prefix=%s&uploads=", escaped);
    curl_free(escaped);
    r = run(s, &rq, err);
    if (r < 0 || r == 404) {
        return r < 0 ? r : missing_bucket(s, err);
    }
    before = time_of_server(s) - keep_seconds;
    page = s->body;
    s->body = buf_make(0);
    r = s3_uploads_parse(buf_span(&page), &list);
    while (r >= 0 && count < ABORTS_MAX && (r = s3_uploads_next(&list, &upload)) == 1) {
        int aborted = abort_old(s, &upload, before, err);

        /* The others go on: the list is in the same order each time. */
        failure = aborted < 0 ? aborted : failure;
        count += aborted > 0 ? aborted : 0;
    }
    if (r >= 0 && count == 0 && failure < 0) {
        return failure;
    }
    return r < 0 ? error_set(err, EBADMSG, "the object store's list makes no sense") : count;
}

static void s3_close(void *self)
{
    struct object_s3 *s = self;

    curl_easy_cleanup(s->curl);
    buf_done(&s->body);
    free(s);
}

void *object_s3_open(const struct object_place *place, struct error *err)
{
    struct object_s3 *s = calloc(1, sizeof(*s));

    if (s != NULL) {
        s->place = place;
        s->curl = curl_easy_init();
    }
    if (s == NULL || s->curl == NULL) {
        free(s);
        (void)error_set(err, ENOMEM, "no memory");
        return NULL;
    }
    return s;
}

const struct object_backend object_s3_backend = {
    .put = s3_put,
    .get = s3_get,
    .has = s3_has,
    .list = s3_list,
    .remove = s3_remove,
    .abort_cut = s3_abort_cut,
    .close = s3_close,
};
