#include "node/id_table.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* FNV-1a. */
static uint32_t head_of(const char *id)
{
    uint32_t hash = 2166136261U;

    for (const char *c = id; *c != '\0'; c++) {
        hash = (hash ^ (uint8_t)*c) * 16777619U;
    }
    return hash % ID_TABLE_HEADS;
}

void id_table_add(struct id_table *table, struct id_entry *entry, const char *id)
{
    struct id_entry **head = &table->heads[head_of(id)];

    entry->id = id;
    entry->next = *head;
    *head = entry;
}

void id_table_remove(struct id_table *table, struct id_entry *entry)
{
    struct id_entry **at;

    if (entry->id == NULL) {
        return;
    }
    at = &table->heads[head_of(entry->id)];
    while (*at != NULL && *at != entry) {
        at = &(*at)->next;
    }
    if (*at == entry) {
        *at = entry->next;
    }
    entry->next = NULL;
}

struct id_entry *id_table_find(const struct id_table *table, const char *id)
{
    struct id_entry *entry = table->heads[head_of(id)];

    while (entry != NULL && strcmp(entry->id, id) != 0) {
        entry = entry->next;
    }
    return entry;
}
