/* Lists and `fields`: one page of items, newest first. */
#pragma once

#include <stdint.h>

#include <jansson.h>

#include "api/request.h"

struct page {
    struct request *rq;
    int64_t limit;
    int64_t before_seq; /* of the cursor; 0: from the newest */
    uint64_t scope;
    const char *fields; /* NULL: all */
    json_t *items;
    int64_t last_seq;
    bool more;
};

#define _cleanup_page_ _cleanup_(page_done)

/* `known`: the names that `fields` may hold, with blanks between. */
int page_start(struct page *page,
               struct request *rq,
               const char *list,
               const char *known,
               struct error *err) _must_check_;
void page_done(struct page *page);
/* Adds an item (stolen; NULL is -ENOMEM): 0, or 1 when the page was full and the item is the first
 * of the next one. */
int page_add(struct page *page, json_t *item, int64_t seq) _must_check_;
/* Answers with the page. */
void page_answer(struct page *page);
/* Answers with a page of an array whose first item is the newest. */
void page_answer_array(struct page *page, const json_t *array);

/* `fields` of the query, checked against `known`: NULL in *ret_fields for none. */
int fields_read(const struct request *rq,
                const char *known,
                const char **ret_fields,
                struct error *err) _must_check_;
/* The object (stolen) with these keys only. */
json_t *fields_pick(json_t *object, const char *fields);
