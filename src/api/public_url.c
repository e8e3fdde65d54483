#include "api/public_url.h"

#include "api/api.h"
#include "api/request.h"

static const char *scheme_of(const struct api *api)
{
    return api->settings.api_tls_certificate[0] == '\0' ? "http" : "https";
}

/* Requests of HTTP/1.0 may have no Host. */
static const char *host_of(const struct request *rq)
{
    const char *host = http_exchange_header(rq->exchange, "Host");

    return host == NULL || host[0] == '\0' ? rq->api->settings.api_listen : host;
}

static struct span without_slashes(const char *text)
{
    struct span s = span_of_str(text);

    while (s.n > 0 && s.p[s.n - 1] == '/') {
        s = span_head(s, s.n - 1);
    }
    return s;
}

void public_url_put(const struct request *rq, struct buf *out)
{
    struct span given = without_slashes(rq->api->settings.api_public_url);

    if (given.n > 0) {
        buf_put(out, given);
        return;
    }
    buf_printf(out, "%s://%s", scheme_of(rq->api), host_of(rq));
}

/* ":8700" of "name:8700" or "[::1]:8700", else nothing. */
static struct span port_of(struct span authority)
{
    size_t end = authority.n;

    while (end > 0 && authority.p[end - 1] >= '0' && authority.p[end - 1] <= '9') {
        end--;
    }
    return end > 0 && end < authority.n && authority.p[end - 1] == ':'
               ? span_skip(authority, end - 1)
               : span_make(NULL, 0);
}

void public_url_put_port(const struct request *rq,
                         const char *sandbox_id,
                         unsigned int port,
                         struct buf *out)
{
    struct span given = without_slashes(rq->api->settings.api_public_url);
    size_t colon = span_find(given, 0, ':');
    struct span scheme = span_of_str(scheme_of(rq->api));
    struct span authority = span_of_str(host_of(rq));

    if (rq->api->settings.api_domain[0] == '\0') {
        public_url_put(rq, out);
        buf_printf(out, "/v1/sandboxes/%s/ports/%u/proxy", sandbox_id, port);
        return;
    }
    if (colon + 3 < given.n) {
        scheme = span_head(given, colon);
        authority = span_skip(given, colon + 3);
        authority = span_head(authority, span_find(authority, 0, '/'));
    }
    buf_put(out, scheme);
    buf_printf(out, "://%u-%s.%s", port, sandbox_id, rq->api->settings.api_domain);
    buf_put(out, port_of(authority));
}
