/* For tests of what is stored in an object store: there is none. */
#include "node/objects.h"

bool objects_enabled(const struct node *node)
{
    (void)node;
    return false;
}

void objects_keep(struct node *node, const char *owner)
{
    (void)node;
    (void)owner;
}

void objects_changed(struct node *node, const char *owner)
{
    (void)node;
    (void)owner;
}

void objects_forget(struct node *node, const char *owner)
{
    (void)node;
    (void)owner;
}

void objects_read_marker(const char *dir, char out[OBJECTS_NAME_SIZE])
{
    (void)dir;
    out[0] = '\0';
}
