/* Processes that come with a snapshot of another moment, or of another sandbox. */
#pragma once

struct process_table;

/* If the snapshot in `dir` (a path) has sessions of its own: what the table has of processes that
 * did not end becomes lost ("rolled_back"), since the guest to come knows nothing of them and uses
 * their channels for others; then the snapshot's come into the table. May be repeated after it was
 * cut off. 0 or -errno. */
int process_table_restore(struct process_table *table, const char *dir);
/* What did not end becomes lost, and is written down so at once: the channels that they had are
 * about to be used again. 0 or -errno. */
int process_table_lose_all(struct process_table *table, const char *reason);
