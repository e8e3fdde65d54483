/* URLs in answers: how the client of this request reaches us. */
#pragma once

struct buf;
struct request;

/* Appends "https://space.example.com" without a final slash: the setting api.public_url, or else
 * the scheme of our listener and the Host of the request. */
void public_url_put(const struct request *rq, struct buf *out);
/* Appends "http://8080-sb….space.localhost:8700", the origin of a port below api.domain, with the
 * scheme and the port of the above; without a domain the port's path on the API. No final slash. */
void public_url_put_port(const struct request *rq,
                         const char *sandbox_id,
                         unsigned int port,
                         struct buf *out);
