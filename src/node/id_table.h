/* Records by their ids, for sets that grow with what is stored. Intrusive: an entry is a member of
 * its record, and the id that it is given must stay where it is. All zero is an empty table. */
#pragma once

/* A look-up of the most that a node has been measured with (10,000) passes two or three others. */
#define ID_TABLE_HEADS 4096U

struct id_entry {
    struct id_entry *next;
    const char *id;
};

struct id_table {
    struct id_entry *heads[ID_TABLE_HEADS];
};

/* `id` is in no other entry of the table. */
void id_table_add(struct id_table *table, struct id_entry *entry, const char *id);
/* Fine for one that is not in it. */
void id_table_remove(struct id_table *table, struct id_entry *entry);
/* NULL: there is none. */
struct id_entry *id_table_find(const struct id_table *table, const char *id);
