#include "guest/link_table.h"

#define SLOTS_FIRST 256U
#define NAMES_MAX   33554432U
#define HASH_FACTOR 0x9e3779b97f4a7c15U

void link_table_init(struct link_table *t)
{
    *t = (struct link_table){.names = buf_make(NAMES_MAX)};
}

void link_table_done(struct link_table *t)
{
    free(t->slots);
    buf_done(&t->names);
    link_table_init(t);
}

static struct link_slot *slot_of(struct link_slot *slots, size_t n, dev_t dev, ino_t ino)
{
    uint64_t hash = ((uint64_t)ino ^ ((uint64_t)dev << 32U)) * HASH_FACTOR;
    size_t i = (size_t)(hash >> 32U) & (n - 1);

    while (slots[i].name_at != 0 && (slots[i].dev != dev || slots[i].ino != ino)) {
        i = (i + 1) & (n - 1);
    }
    return &slots[i];
}

/* At most half of the slots are in use, so that a free one is near. */
static bool make_room(struct link_table *t)
{
    size_t n = t->n_slots == 0 ? SLOTS_FIRST : t->n_slots * 2;
    struct link_slot *slots;

    if (t->n_slots > 0 && t->n_used < t->n_slots / 2) {
        return true;
    }
    if (t->n_used >= LINK_TABLE_MAX) {
        return false;
    }
    slots = calloc(n, sizeof(*slots));
    if (slots == NULL) {
        return false;
    }
    for (size_t i = 0; i < t->n_slots; i++) {
        const struct link_slot *old = &t->slots[i];

        if (old->name_at != 0) {
            *slot_of(slots, n, old->dev, old->ino) = *old;
        }
    }
    free(t->slots);
    t->slots = slots;
    t->n_slots = n;
    return true;
}

static void note(struct link_table *t, dev_t dev, ino_t ino, const char *name)
{
    size_t at;

    if (!make_room(t)) {
        return;
    }
    if (t->names.n == 0) {
        buf_put_u8(&t->names, 0); /* so that no name is at 0 */
    }
    at = t->names.n;
    buf_put(&t->names, span_make(name, strlen(name) + 1));
    if (buf_error(&t->names) == 0) {
        *slot_of(t->slots, t->n_slots, dev, ino) = (struct link_slot){dev, ino, at};
        t->n_used++;
    }
}

const char *link_table_find(struct link_table *t, dev_t dev, ino_t ino, const char *name)
{
    const struct link_slot *slot = t->n_slots == 0 ? NULL : slot_of(t->slots, t->n_slots, dev, ino);

    if (slot != NULL && slot->name_at != 0) {
        return (const char *)&t->names.p[slot->name_at];
    }
    note(t, dev, ino, name);
    return NULL;
}
