/* Reading sandboxes. */
#include <errno.h>

#include "api/api.h"
#include "api/create.h"
#include "api/expiry.h"
#include "api/node_call.h"
#include "api/node_link.h"
#include "api/page.h"
#include "api/proxy.h"
#include "api/record_json.h"
#include "api/routes.h"

#define METADATA_PREFIX  "metadata."
#define METADATA_FILTERS 16

struct filter_texts {
    const char *metadata[2 * METADATA_FILTERS];
};

static int add_query_item(const struct query_item *item,
                          struct sandbox_filter *filter,
                          struct filter_texts *texts,
                          struct error *err)
{
    enum sandbox_state state;

    if (strcmp(item->name, "state") == 0) {
        if (sandbox_state_find(item->value, &state) < 0) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "state",
                                  "there is no sandbox state %.40s", item->value);
        }
        filter->states |= 1U << (unsigned int)state;
    } else if (strcmp(item->name, "name") == 0) {
        filter->name = item->value;
        if (!create_name_is_valid(item->value)) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "name",
                                  "name must be 1 to 63 of a-z, 0-9 and -, got %.70s", item->value);
        }
    } else if (strcmp(item->name, "template") == 0) {
        filter->template_name = item->value;
    } else if (strncmp(item->name, METADATA_PREFIX, sizeof(METADATA_PREFIX) - 1) == 0) {
        if (filter->metadata_count == METADATA_FILTERS) {
            return error_set_code(err, ERROR_INVALID_REQUEST, item->name,
                                  "at most %d metadata filters", METADATA_FILTERS);
        }
        texts->metadata[2 * filter->metadata_count] = &item->name[sizeof(METADATA_PREFIX) - 1];
        texts->metadata[2 * filter->metadata_count + 1] = item->value;
        filter->metadata_count++;
    }
    return 0;
}

static int read_filter(const struct request *rq,
                       struct sandbox_filter *filter,
                       struct filter_texts *texts,
                       struct error *err)
{
    int r = 0;

    filter->metadata = texts->metadata;
    for (size_t i = 0; r == 0 && i < rq->query.count; i++) {
        r = add_query_item(&rq->query.items[i], filter, texts, err);
    }
    if (r == 0) {
        r = query_time(&rq->query, "created_after", &filter->created_after, err);
    }
    if (r == 0) {
        r = query_time(&rq->query, "created_before", &filter->created_before, err);
    }
    return r;
}

static int add_sandbox(void *arg, const struct sandbox *s)
{
    return page_add(arg, sandbox_json(s), s->seq);
}

void route_sandbox_list(struct request *rq)
{
    _cleanup_page_ struct page page = {0};
    struct sandbox_filter filter = {.before_seq = 0};
    struct filter_texts texts;
    struct error err = {0};
    int r = page_start(&page, rq, "sandboxes", SANDBOX_FIELDS, &err);

    if (r == 0) {
        r = read_filter(rq, &filter, &texts, &err);
    }
    if (r == 0) {
        expiry_flush(rq->api);
        filter.before_seq = page.before_seq;
        filter.limit = (int)page.limit + 1;
        r = store_sandbox_list(rq->api->store, &filter, add_sandbox, &page, &err);
    }
    if (r == -ENOMEM) {
        (void)error_set(&err, ENOMEM, "no memory");
    }
    if (r < 0) {
        request_fail(rq, &err);
        return;
    }
    page_answer(&page);
}

void route_sandbox_get(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};
    struct error err;
    const char *fields;

    if (fields_read(rq, SANDBOX_FIELDS, &fields, &err) < 0) {
        request_fail(rq, &err);
        return;
    }
    expiry_flush(rq->api);
    if (node_call_sandbox(rq, &s)) {
        request_answer(rq, 200, fields_pick(sandbox_json(&s), fields));
    }
}

static void console_now(struct request *rq)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "/n1/sandboxes/%s/console", rq->params[0]);
    proxy_json(rq, "GET", path, NULL, false);
}

void route_sandbox_console(struct request *rq)
{
    _cleanup_sandbox_ struct sandbox s = {0};

    if (node_call_sandbox(rq, &s)) {
        node_link_need(rq, console_now);
    }
}
