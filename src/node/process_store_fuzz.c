/* Records of processes, with the files of their output, as an earlier run may have left them: two
 * records, an input, what has expired, and the output of the first one, one behind the other. What
 * is taken is the same when it is written and read again, and its output can be read from end to
 * end. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "node/agent_hold.h"
#include "node/data.h"
#include "node/fuzz_dir.h"
#include "node/process_private.h"
#include "node/sandbox.h"

#define FIRST    "sessions/se0123456789abcdefgh"
#define SECOND   "sessions/sezzzzzzzzzzzzzzzzzz"
#define TEXT_MAX (8U * 1024U * 1024U)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct sandbox {
    int dir_fd;
};

/* ---- what the records are not about: nothing below is reached by reading one ---- */

int sandbox_dir_fd(const struct sandbox *sb)
{
    return sb->dir_fd;
}

/* As process.c has it, which would bring the agent with it. */
const char *process_state_name(enum process_state state)
{
    static const char *const names[] = {"starting", "running", "exited", "lost"};

    _Static_assert(sizeof(names) / sizeof(names[0]) == PROCESS_STATE_COUNT, "one each");

    return names[state];
}

void process_timeout_stop(struct process *p)
{
    fuzz_require(p->timeout.timer == NULL);
}

void process_notify(struct process *p, unsigned int events)
{
    fuzz_require(events == PROCESS_EVENT_GONE && list_is_empty(&p->watches));
}

const struct sandbox_info *sandbox_info(const struct sandbox *sb)
{
    (void)sb;
    abort();
}

struct process_table *sandbox_processes(const struct sandbox *sb)
{
    (void)sb;
    abort();
}

void sandbox_set_processes(struct sandbox *sb, struct process_table *processes)
{
    (void)sb;
    (void)processes;
    abort();
}

void agent_channel_abandon(struct agent_channel *channel)
{
    (void)channel;
    abort();
}

void agent_channel_close(struct agent_channel *channel)
{
    (void)channel;
    abort();
}

void agent_spare_unknown(struct agent *agent)
{
    (void)agent;
    abort();
}

void process_adopt(struct process *p, struct agent *agent)
{
    (void)p;
    (void)agent;
    abort();
}

void process_lose(struct process *p, const char *reason)
{
    (void)p;
    (void)reason;
    abort();
}

int process_settle(struct process *p)
{
    (void)p;
    abort();
}

void process_pass_turn(struct process_table *table, const char *shell_state)
{
    (void)table;
    (void)shell_state;
    abort();
}

void process_table_wake(struct process_table *table)
{
    (void)table;
    abort();
}

/* ---- one reading ---- */

struct reading {
    struct data data;
    struct sandbox sandbox;
    struct process_table *table;
};

static void start(struct reading *r, int dir_fd)
{
    *r = (struct reading){.sandbox = {dir_fd}};
    spool_store_init(&r->data.spools);
    list_init(&r->data.ended);
    r->table = calloc(1, sizeof(*r->table));
    fuzz_require(r->table != NULL);
    r->table->data = &r->data;
    r->table->sandbox = &r->sandbox;
    list_init(&r->table->processes);
    list_init(&r->table->expired);
    process_expired_load(r->table);
    fuzz_require(process_load_all(r->table) == 0);
}

static void finish(struct reading *r)
{
    process_table_free(r->table);
    fuzz_require(list_is_empty(&r->data.ended) && list_is_empty(&r->data.spools.open));
}

/* ---- what was taken ---- */

static bool is_at(const struct order_position *a, const struct order_position *b)
{
    return a->at[0] == b->at[0] && a->at[1] == b->at[1];
}

/* Each run lies behind the one before it. */
static void check_output(struct spool *spool)
{
    struct order_position at = *spool_start(spool);

    while (!is_at(&at, spool_end(spool))) {
        _cleanup_buf_ struct buf bytes = buf_make(0);
        struct spool_run run = {0};

        fuzz_require(spool_find_run(spool, &at, &run) == 0 && run.bytes > 0);
        fuzz_require(spool_read(spool, run.stream, at.at[run.stream], run.bytes, &bytes) == 0);
        fuzz_require(bytes.n == run.bytes);
        at.at[run.stream] += run.bytes;
        fuzz_require(at.at[run.stream] <= spool_end(spool)->at[run.stream]);
    }
}

static void check(struct process *p)
{
    fuzz_require(id_is_valid(p->id, "pr") && id_is_valid(p->session_id, "se"));
    fuzz_require(process_find(p->table, p->id) == p);
    fuzz_require(process_find_session(p->table, p->session_id) == p);
    fuzz_require(json_array_size(p->argv) > 0 && p->user != NULL);
    fuzz_require(p->shell_state[0] == '\0' || json_array_size(p->argv) == 3);
    fuzz_require(p->turn <= p->table->last_turn);
    fuzz_require(process_is_ended(p) == !list_is_empty(&p->ended_link));
    check_output(p->spool);
}

static void read_record(int dir_fd, const struct process *p, struct buf *ret_text)
{
    char path[64];

    (void)snprintf(path, sizeof(path), "sessions/%s.json", p->session_id);
    fuzz_require(file_read(dir_fd, path, TEXT_MAX, ret_text) == 0);
}

/* Written again by the second reading, it is what the first one wrote. */
static void check_again(struct reading *first, int dir_fd)
{
    struct reading second;
    struct list *following;
    struct list *it;

    list_foreach(it, following, &first->table->processes)
    {
        fuzz_require(process_save(list_entry(it, struct process, link)) == 0);
    }
    start(&second, dir_fd);
    fuzz_require(second.table->count == first->table->count);
    list_foreach(it, following, &second.table->processes)
    {
        struct process *p = list_entry(it, struct process, link);
        _cleanup_buf_ struct buf before = buf_make(0);
        _cleanup_buf_ struct buf after = buf_make(0);

        read_record(dir_fd, p, &before);
        fuzz_require(process_save(p) == 0);
        read_record(dir_fd, p, &after);
        fuzz_require(span_equals(buf_span(&before), buf_span(&after)));
    }
    finish(&second);
}

/* A record that was not taken is known to be there. */
static void check_unread(const struct process_table *table)
{
    fuzz_require(table->is_incomplete == (table->count < 2));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    _cleanup_close_ int dir_fd = -1;
    struct span rest = span_make(data, size);
    struct reading reading;
    struct list *following;
    struct list *it;
    char dir[FUZZ_DIR_SIZE];

    fuzz_dir_make(dir);
    dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    fuzz_require(dir_fd >= 0 && mkdirat(dir_fd, "sessions", 0700) == 0);
    fuzz_put(dir, FIRST ".json", fuzz_take(&rest));
    fuzz_put(dir, SECOND ".json", fuzz_take(&rest));
    fuzz_put(dir, FIRST ".in", fuzz_take(&rest));
    fuzz_put(dir, "sessions/expired", fuzz_take(&rest));
    fuzz_put(dir, FIRST ".out", fuzz_take(&rest));
    fuzz_put(dir, FIRST ".err", fuzz_take(&rest));
    fuzz_put(dir, FIRST ".order", rest);
    start(&reading, dir_fd);
    check_unread(reading.table);
    list_foreach(it, following, &reading.table->processes)
    {
        check(list_entry(it, struct process, link));
    }
    check_again(&reading, dir_fd);
    finish(&reading);
    fuzz_dir_remove(dir);
    return 0;
}
