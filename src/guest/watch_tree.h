/* The directories that a watch follows: a tree of names, found by watch descriptor and by name. A
 * directory that moves takes what is below it along. */
#pragma once

#include "base/buf.h"
#include "base/list.h"

#define WATCH_HASH 4096U

struct watch_node {
    struct list in_wds;
    struct list in_names;
    struct list in_parent;
    struct list children;
    struct watch_node *parent; /* NULL: the top */
    int wd;
    char name[]; /* "" for the top */
};

struct watch_tree {
    struct list wds[WATCH_HASH];
    struct list names[WATCH_HASH];
    size_t count;
};

void watch_tree_init(struct watch_tree *t);
/* Adds a directory that has no node yet. NULL without memory. */
struct watch_node *
watch_tree_add(struct watch_tree *t, struct watch_node *parent, const char *name, int wd);
struct watch_node *watch_tree_find(const struct watch_tree *t, int wd);
struct watch_node *watch_tree_find_child(const struct watch_tree *t,
                                         const struct watch_node *parent,
                                         const char *name);
/* Puts a node elsewhere; the pointer changes. NULL without memory, or when it would be below
 * itself: then nothing changed. */
struct watch_node *watch_tree_move(struct watch_tree *t,
                                   struct watch_node *node,
                                   struct watch_node *parent,
                                   const char *name);
/* Removes a node and all below it; `gone` hears of each descriptor. */
void watch_tree_remove(struct watch_tree *t,
                       struct watch_node *node,
                       void (*gone)(void *arg, int wd),
                       void *arg);
/* Appends the path below the top: "", "a", "a/b". */
void watch_tree_put_path(struct buf *b, const struct watch_node *node);
