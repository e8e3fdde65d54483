/* Intrusive doubly linked list. A list head and an item are both a struct list; an item that is in
 * no list points at itself. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct list {
    struct list *next;
    struct list *prev;
};

static inline void list_init(struct list *l)
{
    l->next = l;
    l->prev = l;
}

static inline bool list_is_empty(const struct list *l)
{
    return l->next == l;
}

static inline void list_append(struct list *head, struct list *item)
{
    item->prev = head->prev;
    item->next = head;
    head->prev->next = item;
    head->prev = item;
}

static inline void list_remove(struct list *item)
{
    item->prev->next = item->next;
    item->next->prev = item->prev;
    list_init(item);
}

#define list_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* `next` is kept, so the body may remove `it`. */
#define list_foreach(it, following, head)                                                          \
    for ((it) = (head)->next, (following) = (it)->next; (it) != (head);                            \
         (it) = (following), (following) = (it)->next)
