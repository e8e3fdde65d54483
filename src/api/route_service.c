/* Health, readiness, version, and the description of the API. */
#include "api/api.h"
#include "api/node_link.h"
#include "api/routes.h"
#include "io/json_request.h"

void route_healthz(struct request *rq)
{
    request_answer(rq, 200, json_pack("{s:s}", "status", "ok"));
}

void route_readyz(struct request *rq)
{
    struct error err;

    if (node_link_is_ready(rq->api->node)) {
        request_answer(rq, 200, json_pack("{s:s}", "status", "ready"));
        return;
    }
    (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL, "not ready yet");
    request_fail_more(rq, &err,
                      json_pack("{s:o}", "waiting_for", node_link_waiting_for(rq->api->node)));
}

void route_version(struct request *rq)
{
    request_answer(rq, 200, json_pack("{s:s, s:s}", "version", SPACE_VERSION, "api", "v1"));
}

void route_openapi(struct request *rq)
{
    if (rq->api->openapi.n == 0) {
        request_fail_missing(rq, "file", "openapi.json");
        return;
    }
    request_answer_text(rq, 200, "application/json", buf_span(&rq->api->openapi));
}
