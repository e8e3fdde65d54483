/* Records of processes on disk. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <sys/stat.h>

#include "base/fd.h"
#include "base/log.h"
#include "io/json_request.h"
#include "node/data.h"
#include "node/json_field.h"
#include "node/node.h"
#include "node/process_private.h"
#include "node/sandbox.h"
#include "wire/agent_limits.h"

#define SESSIONS_DIR     "sessions"
#define RECORD_BYTES_MAX (4U * 1024U * 1024U)
#define RECORD_VERSION   1
#define RECORDS_MAX      100000U

static void file_name(const struct process *p, const char *suffix, char out[64])
{
    (void)snprintf(out, 64, SESSIONS_DIR "/%s.%s", p->session_id, suffix);
}

static const char *const wait_names[] = {
    [PROCESS_WAIT_NONE] = "none",
    [PROCESS_WAIT_ATTACH] = "attach",
    [PROCESS_WAIT_TURN] = "turn",
};
_Static_assert(sizeof(wait_names) / sizeof(wait_names[0]) == PROCESS_WAIT_COUNT, "one each");

/* What the first release did not have. The variables are there only until the start was seen, or
 * rather until the record is written after that. */
static int add_start(const struct process *p, json_t *record)
{
    json_t *tty = json_null();
    json_t *env = json_null();
    json_t *start;

    if (p->tty.on) {
        tty = json_pack("{s:i, s:i, s:s}", "cols", (int)p->tty.cols, "rows", (int)p->tty.rows,
                        "term", p->tty.term);
    }
    if (p->env != NULL) {
        env = json_incref(p->env);
    }
    start = json_pack("{s:I, s:s, s:I, s:s, s:b, s:o, s:o, s:b, s:b}", "created_at_ms",
                      (json_int_t)p->created_at_ms, "wait", wait_names[p->wait], "turn",
                      (json_int_t)p->turn, "shell_state", p->shell_state, "cwd_given", p->cwd_given,
                      "tty", tty, "env", env, "pipe_held", p->pipe_held, "out_of_memory",
                      p->out_of_memory);
    return json_object_set_new(record, "start", start);
}

static json_t *record_make(const struct process *p)
{
    json_t *record = json_pack(
        "{s:i, s:s, s:s, s:s, s:I, s:O, s:s?, s:s, s:I, s:i, s:i, s:b, s:s, s:I, s:I, s:I, s:I, "
        "s:b, s:I, s:i, s:b, s:b, s:b, s:I, s:I}",
        "version", RECORD_VERSION, "id", p->id, "session_id", p->session_id, "state",
        process_state_name(p->state), "channel", (json_int_t)p->channel_number, "argv", p->argv,
        "cwd", p->cwd, "user", p->user != NULL ? p->user : "", "pid", (json_int_t)p->pid,
        "exit_code", p->exit_code, "signal", p->signal, "timed_out", p->timed_out, "lost_reason",
        p->lost_reason, "started_at_ms", (json_int_t)p->started_at_ms, "exited_at_ms",
        (json_int_t)p->exited_at_ms, "duration_ns", (json_int_t)p->duration_ns, "timeout_ms",
        (json_int_t)p->timeout_ms, "leave_on_timeout", p->leave_on_timeout, "max_output_bytes",
        (json_int_t)p->max_output_bytes, "encoding", (int)p->encoding, "has_stdin", p->has_stdin,
        "stdin_open", !p->input_eof, "block_when_full", p->block_when_full, "spool_bytes",
        (json_int_t)p->spool_bytes, "paused_before_ms", (json_int_t)p->paused_before_ms);

    if (record != NULL && add_start(p, record) < 0) {
        json_decref(record);
        return NULL;
    }
    return record;
}

int process_save(const struct process *p)
{
    _cleanup_json_ json_t *record = record_make(p);
    int dir_fd = sandbox_dir_fd(p->table->sandbox);
    char name[64];
    int r;

    if (record == NULL) {
        return -ENOMEM;
    }
    file_name(p, "json", name);
    r = json_file_write(dir_fd, name, record, false);
    if (r == -ENOENT) {
        if (mkdirat(dir_fd, SESSIONS_DIR, 0700) < 0 && errno != EEXIST) {
            return -errno;
        }
        r = json_file_write(dir_fd, name, record, false);
    }
    return r;
}

int process_save_input(struct process *p)
{
    int dir_fd = sandbox_dir_fd(p->table->sandbox);
    char name[64];
    int r;

    file_name(p, "in", name);
    if (mkdirat(dir_fd, SESSIONS_DIR, 0700) < 0 && errno != EEXIST) {
        return -errno;
    }
    r = file_write_atomic(dir_fd, name, buf_span(&p->input), 0600, false);
    if (r == 0) {
        p->input_saved = true;
    }
    return r;
}

void process_remove_input(struct process *p)
{
    char name[64];

    file_name(p, "in", name);
    (void)unlinkat(sandbox_dir_fd(p->table->sandbox), name, 0);
}

void process_remove_files(struct process *p)
{
    char name[64];

    if (p->spool != NULL) {
        spool_remove(p->spool);
    }
    if (p->table->ephemeral) {
        return;
    }
    if (p->input_saved) {
        process_remove_input(p);
    }
    file_name(p, "json", name);
    (void)unlinkat(sandbox_dir_fd(p->table->sandbox), name, 0);
}

/* ---- reading ---- */

static bool read_state(const json_t *record, struct process *p)
{
    char name[16];

    if (!json_field_text(record, "state", name, sizeof(name))) {
        return false;
    }
    for (int i = 0; i < PROCESS_STATE_COUNT; i++) {
        if (strcmp(process_state_name((enum process_state)i), name) == 0) {
            p->state = (enum process_state)i;
            return true;
        }
    }
    return false;
}

static bool
read_int(const json_t *record, const char *key, json_int_t min, json_int_t max, json_int_t *ret)
{
    const json_t *value = json_object_get(record, key);

    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max) {
        return false;
    }
    *ret = json_integer_value(value);
    return true;
}

static bool read_bool(const json_t *record, const char *key, bool *ret)
{
    const json_t *value = json_object_get(record, key);

    if (!json_is_boolean(value)) {
        return false;
    }
    *ret = json_is_true(value);
    return true;
}

static bool read_argv(const json_t *record, struct process *p)
{
    json_t *argv = json_object_get(record, "argv");
    const json_t *item;
    size_t i;

    if (!json_is_array(argv) || json_array_size(argv) == 0) {
        return false;
    }
    json_array_foreach(argv, i, item) {
        if (!json_is_string(item)) {
            return false;
        }
        p->argv_bytes += json_string_length(item);
    }
    p->argv = json_incref(argv);
    return true;
}

static bool read_texts(const json_t *record, struct process *p)
{
    const char *cwd = json_string_value(json_object_get(record, "cwd"));
    const char *user = json_string_value(json_object_get(record, "user"));

    if (!json_field_text(record, "id", p->id, sizeof(p->id)) ||
        !json_field_text(record, "session_id", p->session_id, sizeof(p->session_id)) ||
        !json_field_text(record, "lost_reason", p->lost_reason, sizeof(p->lost_reason)) ||
        !id_is_valid(p->id, "pr") || !id_is_valid(p->session_id, "se") || user == NULL) {
        return false;
    }
    p->user = strdup(user);
    p->cwd = cwd != NULL ? strdup(cwd) : NULL;
    return p->user != NULL && (cwd == NULL || p->cwd != NULL);
}

static bool read_numbers(const json_t *record, struct process *p)
{
    const json_int_t big = INT64_MAX / 2;
    json_int_t v[12];
    bool stdin_open;

    if (!read_int(record, "channel", 0, UINT32_MAX, &v[0]) ||
        !read_int(record, "pid", 0, UINT32_MAX, &v[1]) ||
        !read_int(record, "exit_code", -1, 255, &v[2]) ||
        !read_int(record, "signal", 0, 255, &v[3]) ||
        !read_int(record, "started_at_ms", 0, big, &v[4]) ||
        !read_int(record, "exited_at_ms", 0, big, &v[5]) ||
        !read_int(record, "duration_ns", 0, big, &v[6]) ||
        !read_int(record, "timeout_ms", 0, big, &v[7]) ||
        !read_int(record, "max_output_bytes", 0, COMMAND_OUTPUT_BYTES_MAX, &v[8]) ||
        !read_int(record, "encoding", 0, COMMAND_ENCODING_BASE64, &v[9]) ||
        !read_int(record, "spool_bytes", 1, big, &v[10]) ||
        !read_bool(record, "timed_out", &p->timed_out) ||
        !read_bool(record, "leave_on_timeout", &p->leave_on_timeout) ||
        !read_bool(record, "has_stdin", &p->has_stdin) ||
        !read_bool(record, "stdin_open", &stdin_open) ||
        !read_bool(record, "block_when_full", &p->block_when_full)) {
        return false;
    }
    if (json_object_get(record, "paused_before_ms") != NULL) { /* not in the first release */
        if (!read_int(record, "paused_before_ms", 0, big, &v[11])) {
            return false;
        }
        p->paused_before_ms = v[11];
    }
    p->channel_number = (uint32_t)v[0];
    p->pid = (uint32_t)v[1];
    p->exit_code = (int)v[2];
    p->signal = (int)v[3];
    p->started_at_ms = v[4];
    p->exited_at_ms = v[5];
    p->duration_ns = (uint64_t)v[6];
    p->timeout_ms = v[7];
    p->max_output_bytes = (uint64_t)v[8];
    p->encoding = (enum command_encoding)v[9];
    p->spool_bytes = (uint64_t)v[10];
    p->input_eof = !stdin_open;
    return true;
}

static bool read_tty(const json_t *tty, struct process *p)
{
    json_int_t cols;
    json_int_t rows;

    if (json_is_null(tty)) {
        return true;
    }
    if (!read_int(tty, "cols", 1, COMMAND_TTY_CELLS_MAX, &cols) ||
        !read_int(tty, "rows", 1, COMMAND_TTY_CELLS_MAX, &rows) ||
        !json_field_text(tty, "term", p->tty.term, sizeof(p->tty.term))) {
        return false;
    }
    p->tty.on = true;
    p->tty.cols = (uint16_t)cols;
    p->tty.rows = (uint16_t)rows;
    p->tty_resized = true; /* whether the guest has this size is not known */
    return true;
}

static bool read_wait(const json_t *start, struct process *p)
{
    char name[16];

    if (!json_field_text(start, "wait", name, sizeof(name))) {
        return false;
    }
    for (int i = 0; i < PROCESS_WAIT_COUNT; i++) {
        if (strcmp(wait_names[i], name) == 0) {
            p->wait = (enum process_wait)i;
            return true;
        }
    }
    return false;
}

static bool read_start(const json_t *record, struct process *p)
{
    const json_t *start = json_object_get(record, "start");
    json_t *env = json_object_get(start, "env");
    const json_int_t big = INT64_MAX / 2;
    json_int_t created_at_ms;
    json_int_t turn;

    if (start == NULL) {
        p->created_at_ms = p->started_at_ms; /* written by the first release */
        p->cwd_given = p->cwd != NULL;
        return true;
    }
    if (!read_int(start, "created_at_ms", 0, big, &created_at_ms) ||
        !read_int(start, "turn", 0, big, &turn) || !read_wait(start, p) ||
        !json_field_text(start, "shell_state", p->shell_state, sizeof(p->shell_state)) ||
        !read_bool(start, "cwd_given", &p->cwd_given) ||
        !read_bool(start, "pipe_held", &p->pipe_held) ||
        /* Later than the others: records of before have none. */
        (json_object_get(start, "out_of_memory") != NULL &&
         !read_bool(start, "out_of_memory", &p->out_of_memory)) ||
        !read_tty(json_object_get(start, "tty"), p) || (p->cwd_given && p->cwd == NULL) ||
        (p->shell_state[0] != '\0' && json_array_size(p->argv) != 3)) {
        return false;
    }
    p->created_at_ms = created_at_ms;
    p->turn = (uint64_t)turn;
    p->env = json_is_object(env) ? json_incref(env) : NULL;
    p->is_resumable = true;
    p->announced = p->wait != PROCESS_WAIT_NONE;
    if (p->turn > p->table->last_turn) {
        p->table->last_turn = p->turn;
    }
    return true;
}

static void read_input(struct process *p)
{
    char name[64];
    int r;

    file_name(p, "in", name);
    r = file_read(sandbox_dir_fd(p->table->sandbox), name, COMMAND_INPUT_BYTES_MAX, &p->input);
    if (r == 0) {
        p->input_saved = true;
    } else {
        buf_clear(&p->input);
    }
}

static bool has_session(struct process_table *table, const char *file)
{
    char session_id[ID_SIZE];

    (void)snprintf(session_id, sizeof(session_id), "%.20s", file);
    return process_find_session(table, session_id) != NULL;
}

static int load_one(struct process_table *table, const char *name)
{
    _cleanup_json_ json_t *record = NULL;
    struct process *p;
    char path[300];
    int r;

    if (has_session(table, name)) {
        return 0; /* in the table since before a rollback */
    }
    (void)snprintf(path, sizeof(path), SESSIONS_DIR "/%s", name);
    record = json_file_read(sandbox_dir_fd(table->sandbox), path, RECORD_BYTES_MAX);
    p = process_new(table);
    if (p == NULL) {
        return -ENOMEM;
    }
    if (record == NULL || !read_state(record, p) || !read_texts(record, p) ||
        !read_argv(record, p) || !read_numbers(record, p) || !read_start(record, p) ||
        strncmp(p->session_id, name, ID_LENGTH) != 0 || process_find(table, p->id) != NULL) {
        log_warning("bad process record", "file=%s", LOG_STR(path));
        table->is_incomplete = true;
        process_discard(p);
        return 0;
    }
    r = spool_recover(
        &table->data->spools, sandbox_dir_fd(table->sandbox), p->session_id,
        &(struct spool_limits){p->spool_bytes, p->max_output_bytes / 2, &table->spools}, &p->spool);
    if (r < 0) {
        log_warning("session not read", "session=%s error=\"%s\"", p->session_id, strerror(-r));
        table->is_incomplete = true;
        process_discard(p);
        return r == -ENOMEM ? r : 0;
    }
    if (p->has_stdin && !process_is_ended(p)) {
        read_input(p);
    }
    process_insert(p);
    return 0;
}

bool process_is_unread(const struct process_table *table, const char *session_id)
{
    char path[64];

    if (!table->is_incomplete) {
        return false;
    }
    (void)snprintf(path, sizeof(path), SESSIONS_DIR "/%.20s.json", session_id);
    return faccessat(sandbox_dir_fd(table->sandbox), path, F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
           errno != ENOENT;
}

static bool is_record(const char *name)
{
    size_t n = strnlen(name, 64);

    return n == ID_LENGTH + 5 && strcmp(&name[ID_LENGTH], ".json") == 0 && name[0] == 's' &&
           name[1] == 'e';
}

int process_load_all(struct process_table *table)
{
    _cleanup_closedir_ DIR *dir = NULL;
    size_t seen = 0;
    int fd = openat(sandbox_dir_fd(table->sandbox), SESSIONS_DIR,
                    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

    if (fd < 0) {
        return errno == ENOENT ? 0 : -errno;
    }
    dir = fdopendir(fd);
    if (dir == NULL) {
        (void)close(fd);
        return -ENOMEM;
    }
    for (;;) {
        /* Only this thread reads this stream. */
        const struct dirent *entry;

        errno = 0;
        entry = readdir(dir); /* NOLINT(concurrency-mt-unsafe) */
        if (entry == NULL && errno != 0) {
            return -errno;
        }
        if (entry == NULL) {
            break;
        }
        if (++seen > RECORDS_MAX) {
            table->is_incomplete = true;
            break;
        }
        if (is_record(entry->d_name)) {
            int r = load_one(table, entry->d_name);

            if (r < 0) {
                return r;
            }
        }
    }
    return 0;
}
