#include "guest/watch_tree.h"

#include <stdint.h>

#define HASH_FIRST  1469598103934665603U
#define HASH_FACTOR 1099511628211U

void watch_tree_init(struct watch_tree *t)
{
    for (size_t i = 0; i < WATCH_HASH; i++) {
        list_init(&t->wds[i]);
        list_init(&t->names[i]);
    }
    t->count = 0;
}

static size_t hash_name(const struct watch_node *parent, const char *name)
{
    uint64_t hash = HASH_FIRST ^ (parent == NULL ? 0 : (uint64_t)parent->wd * HASH_FACTOR);

    for (; *name != '\0'; name++) {
        hash = (hash ^ (uint8_t)*name) * HASH_FACTOR;
    }
    return (size_t)(hash >> 32U) % WATCH_HASH;
}

static void link_node(struct watch_tree *t, struct watch_node *node)
{
    list_append(&t->wds[(unsigned int)node->wd % WATCH_HASH], &node->in_wds);
    list_append(&t->names[hash_name(node->parent, node->name)], &node->in_names);
    if (node->parent != NULL) {
        list_append(&node->parent->children, &node->in_parent);
    }
}

static struct watch_node *node_new(struct watch_node *parent, const char *name, int wd)
{
    size_t n = strlen(name) + 1;
    struct watch_node *node = malloc(sizeof(*node) + n);

    if (node == NULL) {
        return NULL;
    }
    list_init(&node->in_wds);
    list_init(&node->in_names);
    list_init(&node->in_parent);
    list_init(&node->children);
    node->parent = parent;
    node->wd = wd;
    memcpy(node->name, name, n);
    return node;
}

static void node_free(struct watch_node *node)
{
    list_remove(&node->in_wds);
    list_remove(&node->in_names);
    list_remove(&node->in_parent);
    free(node);
}

struct watch_node *
watch_tree_add(struct watch_tree *t, struct watch_node *parent, const char *name, int wd)
{
    struct watch_node *node = node_new(parent, name, wd);

    if (node != NULL) {
        link_node(t, node);
        t->count++;
    }
    return node;
}

struct watch_node *watch_tree_find(const struct watch_tree *t, int wd)
{
    const struct list *head = &t->wds[(unsigned int)wd % WATCH_HASH];

    for (struct list *it = head->next; it != head; it = it->next) {
        struct watch_node *node = list_entry(it, struct watch_node, in_wds);

        if (node->wd == wd) {
            return node;
        }
    }
    return NULL;
}

struct watch_node *
watch_tree_find_child(const struct watch_tree *t, const struct watch_node *parent, const char *name)
{
    const struct list *head = &t->names[hash_name(parent, name)];

    for (struct list *it = head->next; it != head; it = it->next) {
        struct watch_node *node = list_entry(it, struct watch_node, in_names);

        if (node->parent == parent && strcmp(node->name, name) == 0) {
            return node;
        }
    }
    return NULL;
}

struct watch_node *watch_tree_move(struct watch_tree *t,
                                   struct watch_node *node,
                                   struct watch_node *parent,
                                   const char *name)
{
    struct watch_node *moved;
    struct list *it;
    struct list *next;

    for (const struct watch_node *above = parent; above != NULL; above = above->parent) {
        if (above == node) {
            return NULL;
        }
    }
    moved = node_new(parent, name, node->wd);
    if (moved == NULL) {
        return NULL;
    }
    /* The children are found by their parent's descriptor, which stays. */
    list_foreach(it, next, &node->children)
    {
        list_entry(it, struct watch_node, in_parent)->parent = moved;
        list_remove(it);
        list_append(&moved->children, it);
    }
    node_free(node);
    link_node(t, moved);
    return moved;
}

void watch_tree_remove(struct watch_tree *t,
                       struct watch_node *node,
                       void (*gone)(void *arg, int wd),
                       void *arg)
{
    struct watch_node *last = node;

    for (bool done = false; !done;) {
        struct watch_node *above;

        while (!list_is_empty(&last->children)) {
            last = list_entry(last->children.next, struct watch_node, in_parent);
        }
        done = last == node;
        above = last->parent;
        gone(arg, last->wd);
        node_free(last);
        t->count--;
        last = above;
    }
}

void watch_tree_put_path(struct buf *b, const struct watch_node *node)
{
    size_t n = 0;
    uint8_t *to;

    for (const struct watch_node *it = node; it->parent != NULL; it = it->parent) {
        n += strlen(it->name) + (it->parent->parent != NULL ? 1 : 0);
    }
    to = buf_reserve(b, n);
    if (to == NULL || n == 0) {
        return;
    }
    buf_commit(b, n);
    /* From the end to the start. */
    for (const struct watch_node *it = node; it->parent != NULL; it = it->parent) {
        size_t length = strlen(it->name);

        n -= length;
        memcpy(&to[n], it->name, length);
        if (it->parent->parent != NULL) {
            to[--n] = '/';
        }
    }
}
