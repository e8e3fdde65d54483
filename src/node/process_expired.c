/* Processes whose records and output are not kept any more: their ids, so that they are `gone` and
 * not unknown. On disk a line each in `sessions/expired`, appended, and written anew when it has
 * twice as many lines as are kept. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/log.h"
#include "node/process_private.h"
#include "node/sandbox.h"

#define EXPIRED_FILE "sessions/expired"
#define EXPIRED_MAX  1024U
#define LINE_BYTES   (2U * ID_LENGTH + 2U)
#define FILE_MAX     (4U * EXPIRED_MAX * LINE_BYTES)

struct expired {
    struct list link;
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];
};

static struct expired *entry(struct list *it)
{
    return list_entry(it, struct expired, link);
}

/* Takes a pair of ids in; the oldest makes room. */
static void remember(struct process_table *table, const char *process_id, const char *session_id)
{
    struct expired *item;

    if (table->expired_count >= EXPIRED_MAX) {
        item = entry(table->expired.next);
        list_remove(&item->link);
    } else {
        item = calloc(1, sizeof(*item));
        if (item == NULL) {
            return;
        }
        table->expired_count++;
    }
    memcpy(item->process_id, process_id, ID_SIZE);
    memcpy(item->session_id, session_id, ID_SIZE);
    list_append(&table->expired, &item->link);
}

bool process_is_expired(const struct process_table *table, const char *id)
{
    const struct list *it;

    for (it = table->expired.next; it != &table->expired; it = it->next) {
        const struct expired *item =
            (const struct expired *)(const void *)((const char *)it -
                                                   offsetof(struct expired, link));

        if (strcmp(item->session_id, id) == 0 || strcmp(item->process_id, id) == 0) {
            return true;
        }
    }
    return false;
}

static void rewrite(struct process_table *table)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct list *it;
    struct list *following;
    int r;

    list_foreach(it, following, &table->expired)
    {
        buf_printf(&text, "%s %s\n", entry(it)->process_id, entry(it)->session_id);
    }
    r = buf_error(&text);
    if (r == 0) {
        r = file_write_atomic(sandbox_dir_fd(table->sandbox), EXPIRED_FILE, buf_span(&text), 0600,
                              false);
    }
    if (r < 0) {
        log_debug("expired sessions not written", "error=%d", r);
        return;
    }
    table->expired_lines = table->expired_count;
}

/* A line that cannot be written is one session that is unknown after a restart. */
static void append_line(struct process_table *table, const struct process *p)
{
    _cleanup_close_ int fd = openat(sandbox_dir_fd(table->sandbox), EXPIRED_FILE,
                                    O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    char line[LINE_BYTES + 1];

    (void)snprintf(line, sizeof(line), "%s %s\n", p->id, p->session_id);
    if (fd < 0 || write(fd, line, LINE_BYTES) != (ssize_t)LINE_BYTES) {
        log_debug("expired session not written", "session=%s", p->session_id);
        return;
    }
    table->expired_lines++;
}

void process_expired_add(const struct process *p)
{
    struct process_table *table = p->table;

    remember(table, p->id, p->session_id);
    if (table->ephemeral) {
        return;
    }
    append_line(table, p);
    if (table->expired_lines >= 2 * EXPIRED_MAX) {
        rewrite(table);
    }
}

/* A line of the file, or what a crash left of one. */
static bool take_line(struct process_table *table, struct span line)
{
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];
    size_t blank = span_find(line, 0, ' ');

    if (span_copy_str(span_head(line, blank), process_id, sizeof(process_id)) < 0 ||
        span_copy_str(span_skip(line, blank + 1), session_id, sizeof(session_id)) < 0 ||
        !id_is_valid(process_id, "pr") || !id_is_valid(session_id, "se")) {
        return false;
    }
    remember(table, process_id, session_id);
    return true;
}

void process_expired_load(struct process_table *table)
{
    _cleanup_buf_ struct buf text = buf_make(0);
    struct span rest;
    bool is_whole = true;
    int r = file_read(sandbox_dir_fd(table->sandbox), EXPIRED_FILE, FILE_MAX, &text);

    if (r == -ENOENT) {
        return;
    }
    for (rest = buf_span(&text); r == 0 && rest.n > 0;) {
        size_t end = span_find(rest, 0, '\n');

        is_whole = take_line(table, span_head(rest, end)) && end < rest.n && is_whole;
        table->expired_lines++;
        rest = span_skip(rest, end + 1);
    }
    if (r < 0 || !is_whole) {
        rewrite(table);
    }
}

void process_expired_clear(struct process_table *table)
{
    while (!list_is_empty(&table->expired)) {
        struct expired *item = entry(table->expired.next);

        list_remove(&item->link);
        free(item);
    }
}
