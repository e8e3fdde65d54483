#include "api/port_host.h"

#include <errno.h>

#define PORT_DIGITS_MAX 5

/* The name of an authority, without port and final dot. */
static struct span name_of(struct span authority)
{
    struct span name = span_head(authority, span_find(authority, 0, ':'));

    if (name.n > 0 && name.p[name.n - 1] == '.') {
        name = span_head(name, name.n - 1);
    }
    return name;
}

/* The label before ".domain", or nothing. A domain is compared in any case, with a final dot or
 * without. */
static bool label_below(struct span name, const char *domain, struct span *ret_label)
{
    size_t n = strlen(domain);
    char text[256];

    if (n > 0 && domain[n - 1] == '.') {
        n--;
    }
    if (n == 0 || name.n <= n || name.p[name.n - n - 1] != '.' ||
        span_copy_str(span_make(domain, n), text, sizeof(text)) < 0 ||
        !span_equals_nocase(span_skip(name, name.n - n), text)) {
        return false;
    }
    *ret_label = span_head(name, name.n - n - 1);
    return true;
}

int port_number_parse(struct span text, uint16_t *ret_port)
{
    uint64_t value = 0;

    if (text.n == 0 || text.n > PORT_DIGITS_MAX || text.p[0] == '0' ||
        span_parse_u64(text, UINT16_MAX, &value) < 0) {
        return -EINVAL;
    }
    *ret_port = (uint16_t)value;
    return 0;
}

/* Host names have no case, ids do. */
static bool id_of(struct span text, char out[ID_SIZE])
{
    if (text.n != ID_LENGTH) {
        return false;
    }
    for (size_t i = 0; i < ID_LENGTH; i++) {
        uint8_t c = text.p[i];

        out[i] = (char)(c >= 'A' && c <= 'Z' ? c + ('a' - 'A') : c);
    }
    out[ID_LENGTH] = '\0';
    return id_is_valid(out, "sb");
}

enum port_host_kind
port_host_parse(struct span host, const char *domain, struct port_host *ret_host)
{
    struct port_host found;
    struct span label;
    size_t dash;

    if (!label_below(name_of(host), domain, &label)) {
        return PORT_HOST_OUTSIDE;
    }
    dash = span_find(label, 0, '-');
    if (port_number_parse(span_head(label, dash), &found.port) < 0 ||
        !id_of(span_skip(label, dash + 1), found.sandbox_id)) {
        return PORT_HOST_UNKNOWN;
    }
    *ret_host = found;
    return PORT_HOST_PORT;
}

bool port_host_is_below(struct span url, const char *domain)
{
    struct span authority = span_skip(url, span_find(url, 0, ':'));
    struct port_host found;

    if (!span_equals_str(span_head(authority, 3), "://")) {
        return false;
    }
    authority = span_skip(authority, 3);
    authority = span_head(authority, span_find(authority, 0, '/'));
    return port_host_parse(authority, domain, &found) != PORT_HOST_OUTSIDE;
}

bool port_host_is_origin(const struct port_host *host, struct span origin, const char *domain)
{
    struct span authority = span_skip(origin, span_find(origin, 0, ':'));
    struct span scheme = span_head(origin, origin.n - authority.n);
    struct port_host page;

    if ((!span_equals_nocase(scheme, "http") && !span_equals_nocase(scheme, "https")) ||
        !span_equals_str(span_head(authority, 3), "://")) {
        return false;
    }
    return port_host_parse(span_skip(authority, 3), domain, &page) == PORT_HOST_PORT &&
           page.port == host->port && strcmp(page.sandbox_id, host->sandbox_id) == 0;
}
