#include "api/page.h"

#include <errno.h>

#include "api/api.h"
#include "api/cursor.h"
#include "io/json_request.h"

#define LIMIT_DEFAULT 100
#define LIMIT_MAX     1000

static bool has_word(const char *words, struct span word)
{
    struct span rest = span_of_str(words);

    while (rest.n > 0) {
        struct span have = span_head(rest, span_find(rest, 0, ' '));

        if (span_equals(have, word)) {
            return true;
        }
        rest = span_skip(rest, have.n + 1);
    }
    return false;
}

int fields_read(const struct request *rq,
                const char *known,
                const char **ret_fields,
                struct error *err)
{
    const char *fields = query_find(&rq->query, "fields");
    struct span rest;

    *ret_fields = fields;
    if (fields == NULL) {
        return 0;
    }
    rest = span_of_str(fields);
    do {
        struct span word = span_head(rest, span_find(rest, 0, ','));

        if (word.n == 0 || !has_word(known, word)) {
            return error_set_code(err, ERROR_INVALID_REQUEST, "fields",
                                  "fields names no key of this answer: %.60s", fields);
        }
        rest = span_skip(rest, word.n + 1);
    } while (rest.n > 0);
    return 0;
}

json_t *fields_pick(json_t *object, const char *fields)
{
    struct span rest;
    json_t *picked;

    if (object == NULL || fields == NULL) {
        return object;
    }
    picked = json_object();
    rest = span_of_str(fields);
    while (picked != NULL && rest.n > 0) {
        struct span word = span_head(rest, span_find(rest, 0, ','));
        char name[64];

        if (span_copy_str(word, name, sizeof(name)) == 0) {
            (void)json_object_set(picked, name, json_object_get(object, name));
        }
        rest = span_skip(rest, word.n + 1);
    }
    json_decref(object);
    return picked;
}

int page_start(
    struct page *page, struct request *rq, const char *list, const char *known, struct error *err)
{
    const char *cursor = query_find(&rq->query, "cursor");
    uint64_t limit = LIMIT_DEFAULT;
    int r;

    memset(page, 0, sizeof(*page));
    page->rq = rq;
    page->scope = cursor_scope(list, &rq->query);
    r = query_unsigned(&rq->query, "limit", 1, LIMIT_MAX, &limit, err);
    page->limit = (int64_t)limit;
    if (r == 0 && cursor != NULL &&
        cursor_parse(rq->api->secret, page->scope, cursor, &page->before_seq) < 0) {
        r = error_set_code(err, ERROR_INVALID_REQUEST, "cursor",
                           "cursor is not one that this list with these filters gave");
    }
    if (r == 0) {
        r = fields_read(rq, known, &page->fields, err);
    }
    if (r == 0) {
        page->items = json_array();
        if (page->items == NULL) {
            r = error_set(err, ENOMEM, "no memory");
        }
    }
    return r;
}

void page_done(struct page *page)
{
    json_decref(page->items);
    page->items = NULL;
}

int page_add(struct page *page, json_t *item, int64_t seq)
{
    if ((int64_t)json_array_size(page->items) == page->limit) {
        page->more = true;
        json_decref(item);
        return 1;
    }
    page->last_seq = seq;
    return json_array_append_new(page->items, fields_pick(item, page->fields)) < 0 ? -ENOMEM : 0;
}

void page_answer(struct page *page)
{
    char cursor[CURSOR_SIZE];
    json_t *next = json_null();

    if (page->more) {
        cursor_format(page->rq->api->secret, page->scope, page->last_seq, cursor);
        next = json_string(cursor);
    }
    request_answer(page->rq, 200,
                   json_pack("{s:O, s:o}", "items", page->items, "next_cursor", next));
}

void page_answer_array(struct page *page, const json_t *array)
{
    size_t count = json_array_size(array);
    size_t first = 0;

    /* The position is counted from the old end, so that new items in front move nothing. */
    if (page->before_seq != 0 && page->before_seq <= (int64_t)count) {
        first = count - (size_t)page->before_seq + 1;
    }
    for (size_t i = first; i < count; i++) {
        if (page_add(page, json_deep_copy(json_array_get(array, i)), (int64_t)(count - i)) != 0) {
            break;
        }
    }
    page_answer(page);
}
