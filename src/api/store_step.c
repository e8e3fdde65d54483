#include "api/store_step.h"

#include <stdio.h>
#include <string.h>

#include "base/span.h"
#include "base/step.h"

#define WORD_SIZE 32

static bool is_of_word(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static char to_lower(char c)
{
    if (c >= 'A' && c <= 'Z') {
        return "abcdefghijklmnopqrstuvwxyz"[c - 'A'];
    }
    return c;
}

/* The next word of a statement, in lower case; false at its end. */
static bool next_word(const char **sql, char word[WORD_SIZE])
{
    size_t n = 0;

    while (**sql != '\0' && !is_of_word(**sql)) {
        (*sql)++;
    }
    for (; is_of_word(**sql); (*sql)++) {
        if (n + 1 < WORD_SIZE) {
            word[n++] = to_lower(**sql);
        }
    }
    word[n] = '\0';
    return n > 0;
}

/* "INSERT OR REPLACE INTO t", "UPDATE t", "DELETE FROM t"; others change nothing. */
static bool find_change(const char *sql, char verb[WORD_SIZE], char table[WORD_SIZE])
{
    if (!next_word(&sql, verb)) {
        return false;
    }
    if (strcmp(verb, "update") == 0) {
        return next_word(&sql, table);
    }
    if (strcmp(verb, "insert") != 0 && strcmp(verb, "delete") != 0) {
        return false;
    }
    while (next_word(&sql, table)) {
        if (strcmp(table, "into") == 0 || strcmp(table, "from") == 0) {
            return next_word(&sql, table);
        }
    }
    return false;
}

static int on_statement(unsigned int event, void *arg, void *stmt, void *text)
{
    const char *sql = sqlite3_sql(stmt);
    char change[2 * WORD_SIZE + 1];
    char verb[WORD_SIZE];
    char table[WORD_SIZE];
    struct store_step *s = arg;
    size_t n;

    (void)event;
    (void)text;
    if (sqlite3_get_autocommit(sqlite3_db_handle(stmt)) != 0) {
        s->changes[0] = '\0'; /* a transaction begins; the last one may have changed nothing */
    }
    if (sql == NULL || !find_change(sql, verb, table)) {
        return 0;
    }
    (void)snprintf(change, sizeof(change), "%s %s", verb, table);
    n = strlen(s->changes);
    if (strstr(s->changes, change) == NULL) {
        (void)snprintf(&s->changes[n], sizeof(s->changes) - n, "%s%s", n == 0 ? "" : ", ", change);
    }
    return 0;
}

static int on_commit(void *arg)
{
    const struct store_step *s = arg;

    step("commit %s", s->changes);
    return 0;
}

static void on_rollback(void *arg)
{
    struct store_step *s = arg;

    s->changes[0] = '\0';
}

void store_step_watch(sqlite3 *db, struct store_step *s)
{
    if (step_is_watched()) {
        (void)sqlite3_trace_v2(db, SQLITE_TRACE_STMT, on_statement, s);
        (void)sqlite3_commit_hook(db, on_commit, s);
        (void)sqlite3_rollback_hook(db, on_rollback, s);
    }
}

void store_step_committed(struct store_step *s)
{
    if (step_is_watched()) {
        step("committed %s", s->changes);
        s->changes[0] = '\0';
    }
}
