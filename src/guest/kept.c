#include "guest/kept.h"

#include <errno.h>

#include "base/cleanup.h"
#include "wire/agent_process.h"

#define HEAD_ROOM (AGENT_HEAD_BYTES + AGENT_OUTPUT_FIELD_BYTES)

/* Reads up to this size are copied into a chunk of their own size. */
#define SMALL_BYTES 8192U
/* Chunks of one stream; many tiny ones would cost more than their bytes. */
#define CHUNKS_MAX 2048U
/* Full-size chunks that are kept for reuse. */
#define SPARE_MAX 16U
/* What a stream may keep when the pool is over its budget. */
#define POOR_BYTES 4096U

struct kept_chunk {
    struct list in_list;
    uint64_t offset; /* of its first byte */
    size_t used;
    size_t room;
    uint8_t bytes[]; /* HEAD_ROOM, room, tail */
};

static size_t chunk_size(size_t room)
{
    return sizeof(struct kept_chunk) + HEAD_ROOM + room + AGENT_TAIL_BYTES;
}

static struct kept_chunk *chunk_of(struct list *item)
{
    return list_entry(item, struct kept_chunk, in_list);
}

static struct kept_chunk *chunk_new(struct kept_pool *p, size_t room)
{
    struct kept_chunk *c;

    if (room == AGENT_OUTPUT_DATA_MAX && p->n_spare > 0) {
        c = chunk_of(p->spare.next);
        list_remove(&c->in_list);
        p->n_spare--;
    } else {
        c = malloc(chunk_size(room));
        if (c == NULL) {
            return NULL;
        }
        list_init(&c->in_list);
        c->room = room;
    }
    c->offset = 0;
    c->used = 0;
    p->bytes += chunk_size(room);
    return c;
}

static void chunk_free(struct kept_pool *p, struct kept_chunk *c)
{
    list_remove(&c->in_list);
    p->bytes -= chunk_size(c->room);
    if (c->room == AGENT_OUTPUT_DATA_MAX && p->n_spare < SPARE_MAX) {
        list_append(&p->spare, &c->in_list);
        p->n_spare++;
        return;
    }
    free(c);
}

void kept_pool_init(struct kept_pool *p, size_t budget)
{
    *p = (struct kept_pool){.budget = budget};
    list_init(&p->spare);
    p->scratch = chunk_new(p, AGENT_OUTPUT_DATA_MAX);
}

void kept_pool_done(struct kept_pool *p)
{
    free(p->scratch);
    while (!list_is_empty(&p->spare)) {
        struct kept_chunk *c = chunk_of(p->spare.next);

        list_remove(&c->in_list);
        free(c);
    }
    *p = (struct kept_pool){.budget = 0};
    list_init(&p->spare);
}

void kept_init(struct kept *k)
{
    *k = (struct kept){.n_chunks = 0};
    list_init(&k->chunks);
}

void kept_clear(struct kept *k, struct kept_pool *p)
{
    while (!list_is_empty(&k->chunks)) {
        chunk_free(p, chunk_of(k->chunks.next));
    }
    k->n_chunks = 0;
    k->unsent = NULL;
    k->start = k->end;
    k->next = k->end;
}

/* The last chunk while it may still grow: unsent, with room. */
static struct kept_chunk *open_tail(const struct kept *k)
{
    struct kept_chunk *c = k->chunks.prev == &k->chunks ? NULL : chunk_of(k->chunks.prev);

    return c != NULL && k->next <= c->offset && c->used < c->room ? c : NULL;
}

static uint8_t *scratch_get(struct kept_pool *p)
{
    if (p->scratch == NULL) {
        p->scratch = chunk_new(p, AGENT_OUTPUT_DATA_MAX);
    }
    return p->scratch == NULL ? NULL : &p->scratch->bytes[HEAD_ROOM];
}

uint8_t *kept_reserve(struct kept *k, struct kept_pool *p, size_t *ret_room)
{
    size_t window = p->bytes < p->budget ? AGENT_WINDOW : POOR_BYTES;
    size_t kept = (size_t)(k->end - k->start);
    size_t left = kept < window ? window - kept : 0;
    struct kept_chunk *tail = open_tail(k);
    uint8_t *to;
    size_t room;

    *ret_room = 0;
    if (left == 0) {
        return NULL;
    }
    if (tail != NULL) {
        to = &tail->bytes[HEAD_ROOM + tail->used];
        room = tail->room - tail->used;
    } else if (k->n_chunks >= CHUNKS_MAX) {
        return NULL;
    } else {
        to = scratch_get(p);
        room = AGENT_OUTPUT_DATA_MAX;
    }
    if (to != NULL) {
        *ret_room = room < left ? room : left;
    }
    return to;
}

void kept_commit(struct kept *k, struct kept_pool *p, size_t n, bool flows)
{
    struct kept_chunk *tail = open_tail(k);
    struct kept_chunk *c = NULL;

    if (tail == NULL) {
        /* Output that cannot be sent now gets a chunk with room for what follows it. */
        if (n <= SMALL_BYTES && flows) {
            c = chunk_new(p, n);
        }
        if (c != NULL) {
            memcpy(&c->bytes[HEAD_ROOM], &p->scratch->bytes[HEAD_ROOM], n);
        } else {
            c = TAKE(p->scratch);
        }
        c->offset = k->end;
        c->used = 0;
        list_append(&k->chunks, &c->in_list);
        k->n_chunks++;
        tail = c;
    }
    tail->used += n;
    k->end += n;
    if (k->unsent == NULL) {
        k->unsent = tail;
    }
}

uint8_t *kept_dustbin(struct kept_pool *p, size_t *ret_room)
{
    *ret_room = AGENT_OUTPUT_DATA_MAX;
    return scratch_get(p);
}

struct span kept_frame(struct kept *k, uint32_t channel, uint8_t stream)
{
    struct kept_chunk *c = k->unsent;
    size_t skip = (size_t)(k->next - c->offset);
    struct agent_frame f = {.type = AGENT_OUTPUT, .channel = channel};
    /* When skip > 0 the head covers bytes before next, which were acknowledged (kept_resume). */
    uint8_t *head = &c->bytes[skip];
    uint64_t offset = k->next;

    f.payload.n = AGENT_OUTPUT_FIELD_BYTES + (c->used - skip);
    agent_head_format(head, &f);
    head[AGENT_HEAD_BYTES] = stream;
    for (size_t i = 0; i < sizeof(offset); i++) {
        head[AGENT_HEAD_BYTES + 1 + i] = (uint8_t)(offset >> (8U * i));
    }
    c->bytes[HEAD_ROOM + c->used] = agent_tail();
    return span_make(head, HEAD_ROOM + (c->used - skip) + AGENT_TAIL_BYTES);
}

void kept_advance(struct kept *k)
{
    struct kept_chunk *c = k->unsent;

    k->next = c->offset + c->used;
    k->unsent = c->in_list.next == &k->chunks ? NULL : chunk_of(c->in_list.next);
}

static void drop_before(struct kept *k, struct kept_pool *p, uint64_t offset)
{
    while (!list_is_empty(&k->chunks)) {
        struct kept_chunk *c = chunk_of(k->chunks.next);

        if (c->offset + c->used > offset) {
            break;
        }
        chunk_free(p, c);
        k->n_chunks--;
    }
    k->start = offset;
}

int kept_acknowledge(struct kept *k, struct kept_pool *p, uint64_t offset)
{
    if (offset > k->next) {
        return -EBADMSG;
    }
    if (offset > k->start) {
        drop_before(k, p, offset);
    }
    return 0;
}

void kept_resume(struct kept *k, struct kept_pool *p, uint64_t offset)
{
    if (offset < k->start) {
        offset = k->start;
    }
    if (offset > k->end) {
        offset = k->end;
    }
    drop_before(k, p, offset);
    kept_rewind(k);
}

void kept_rewind(struct kept *k)
{
    k->next = k->start;
    k->unsent = list_is_empty(&k->chunks) ? NULL : chunk_of(k->chunks.next);
}
