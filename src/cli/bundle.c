#include "cli/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include <sys/stat.h>
#include <sys/utsname.h>

#include "base/buf.h"
#include "base/fd.h"
#include "base/id.h"
#include "cli/child.h"
#include "cli/cli.h"
#include "cli/installation.h"
#include "cli/redact.h"
#include "cli/rest.h"

#define LOG_TAIL_BYTES     4194304
#define JOURNAL_LIMIT      1048576U
#define SETTINGS_LIMIT     1048576U
#define COMMAND_LIMIT      8388608U
#define COMMAND_TIMEOUT_MS 30000
#define STAGE_TEMPLATE     "/var/tmp/space-bundle-XXXXXX"

struct bundle {
    struct cli *cli;
    int dir_fd; /* of the staged directory */
    char admin_key[CONFIG_KEY_SIZE];
    const char *secrets[3];
};

static void stage_text(const struct bundle *b, const char *name, struct span text)
{
    _cleanup_buf_ struct buf clean = buf_make(0);

    redact_text(text, b->secrets, &clean);
    if (buf_error(&clean) == 0 &&
        file_write_atomic(b->dir_fd, name, buf_span(&clean), 0600, false) < 0) {
        cli_note("space: could not add %s", name);
    }
}

static int put_inner(json_t *left, json_t *inner)
{
    return json_is_object(inner) || json_is_array(inner) ? json_array_append(left, inner) : 0;
}

/* "env" of any depth goes: values of the environment are the users' secrets. 0, or -1 when that
 * could not be done. */
static int drop_env(json_t *value)
{
    _cleanup_json_ json_t *left = json_array();
    int r = left == NULL ? -1 : put_inner(left, value);

    while (r == 0 && json_array_size(left) > 0) {
        size_t last = json_array_size(left) - 1;
        _cleanup_json_ json_t *at = json_incref(json_array_get(left, last));
        const char *key;
        json_t *inner;
        size_t i;

        (void)json_array_remove(left, last);
        (void)json_object_del(at, "env");
        json_object_foreach(at, key, inner) {
            r |= put_inner(left, inner);
        }
        json_array_foreach(at, i, inner) {
            r |= put_inner(left, inner);
        }
    }
    return r;
}

static void stage_json(const struct bundle *b, const char *name, const json_t *json)
{
    json_t *copy = json_deep_copy(json);
    char *text = NULL;

    if (drop_env(copy) == 0) {
        text = json_dumps(copy, JSON_INDENT(2) | JSON_ENCODE_ANY);
    }
    if (text != NULL) {
        stage_text(b, name, span_of_str(text));
    }
    free(text);
    json_decref(copy);
}

static void stage_command(const struct bundle *b, const char *name, const char *const argv[])
{
    _cleanup_buf_ struct buf out = buf_make(COMMAND_LIMIT);
    struct child_options o = {.output = &out, .quiet = true, .timeout_ms = COMMAND_TIMEOUT_MS};

    if (child_run(argv, &o, NULL) == 0) {
        stage_text(b, name, buf_span(&out));
    }
}

/* The last LOG_TAIL_BYTES of a log, from the beginning of a line on. */
static void stage_log(const struct bundle *b, const char *name)
{
    _cleanup_buf_ struct buf text = buf_make(LOG_TAIL_BYTES + 1);
    _cleanup_close_ int fd = -1;
    char path[INSTALLATION_PATH_SIZE + 256];
    char target[300];
    struct stat st;
    struct span tail;

    (void)snprintf(path, sizeof(path), "%s/%.200s", b->cli->settings.log_dir, name);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode)) {
        return;
    }
    if (st.st_size > LOG_TAIL_BYTES && lseek(fd, -LOG_TAIL_BYTES, SEEK_END) < 0) {
        return;
    }
    if (fd_read_all(fd, &text) < 0) {
        text.error = 0; /* it grew while it was read: what came is enough */
    }
    tail = buf_span(&text);
    if (st.st_size > LOG_TAIL_BYTES) {
        tail = span_skip(tail, span_find(tail, 0, '\n') + 1);
    }
    (void)snprintf(target, sizeof(target), "logs/%.200s", name);
    stage_text(b, target, tail);
}

static void stage_logs(const struct bundle *b)
{
    static const char *const journal[] = {"journalctl", "--no-pager", "-n",        "20000", "-u",
                                          "space-node", "-u",         "space-api", NULL};
    _cleanup_closedir_ DIR *dir = opendir(b->cli->settings.log_dir);
    const struct dirent *entry;

    if (mkdirat(b->dir_fd, "logs", 0700) < 0) {
        return;
    }
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] != '.') {
            stage_log(b, entry->d_name);
        }
    }
    if (installation_uses_systemd(b->cli)) {
        stage_command(b, "logs/journal.log", journal);
    }
}

/* journal.json of each sandbox; everything else below them is the users'. */
static void stage_journals(const struct bundle *b)
{
    char top[INSTALLATION_PATH_SIZE];
    _cleanup_closedir_ DIR *dir = NULL;
    const struct dirent *entry;

    (void)snprintf(top, sizeof(top), "%s/volume/sandboxes", b->cli->settings.data_dir);
    dir = opendir(top);
    if (dir == NULL || mkdirat(b->dir_fd, "journals", 0700) < 0) {
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        _cleanup_buf_ struct buf text = buf_make(JOURNAL_LIMIT);
        char path[64];
        char target[64];
        json_t *journal;

        if (!id_is_valid(entry->d_name, "sb")) {
            continue;
        }
        (void)snprintf(path, sizeof(path), "%.20s/journal.json", entry->d_name);
        (void)snprintf(target, sizeof(target), "journals/%.20s.json", entry->d_name);
        if (file_read(dirfd(dir), path, JOURNAL_LIMIT, &text) < 0) {
            continue;
        }
        journal = json_loadb((const char *)text.p, text.n, 0, NULL);
        if (journal != NULL) {
            stage_json(b, target, journal);
        }
        json_decref(journal);
    }
}

static void stage_system(const struct bundle *b)
{
    static const char *const df[] = {"df", "-h", NULL};
    static const char *const ps[] = {"ps", "-eo", "pid,ppid,user,stat,rss,etime,comm", NULL};
    _cleanup_buf_ struct buf text = buf_make(0);
    struct utsname name;

    if (uname(&name) == 0) {
        buf_printf(&text, "space %s\n%s %s %s %s\n", SPACE_VERSION, name.sysname, name.release,
                   name.version, name.machine);
    }
    stage_text(b, "version.txt", buf_span(&text));
    stage_command(b, "df.txt", df);
    stage_command(b, "ps.txt", ps); /* names only: arguments may hold anything */
}

static void stage_all(struct bundle *b, const json_t *doctor)
{
    _cleanup_buf_ struct buf settings = buf_make(SETTINGS_LIMIT);
    json_t *node = NULL;

    stage_json(b, "doctor.json", doctor);
    if (installation_ask_node(b->cli, &node, NULL) == 0) {
        stage_json(b, "node.json", node);
    }
    json_decref(node);
    if (file_read(AT_FDCWD, b->cli->config_path, SETTINGS_LIMIT, &settings) == 0) {
        stage_text(b, "space.conf", buf_span(&settings));
    }
    stage_system(b);
    stage_logs(b);
    stage_journals(b);
}

static int pack(const char *stage, const char *path, struct error *err)
{
    char file[PATH_MAX + 8];
    /* A name with a colon is a file here too, no other machine. */
    const char *const argv[] = {"tar", "--force-local", "-cz", file, "--owner=0", "--group=0", "-C",
                                stage, "space-bundle",  NULL};
    struct child_options o = {.timeout_ms = 4 * COMMAND_TIMEOUT_MS};
    int status;

    (void)snprintf(file, sizeof(file), "--file=%.*s", PATH_MAX, path);
    status = child_run(argv, &o, err);
    return status > 0 ? error_set(err, EPROTO, "tar failed (status %d)", status) : status;
}

int bundle_check_place(const char *path, struct error *err)
{
    const char *slash = strrchr(path, '/');
    char parent[PATH_MAX] = ".";
    struct stat st;

    if (slash != NULL &&
        span_copy_str(span_make(path, (size_t)(slash - path) + 1), parent, sizeof(parent)) < 0) {
        return error_set(err, ENAMETOOLONG, "the path of the bundle is too long");
    }
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return error_set(err, EISDIR, "cannot write %.200s: it is a directory", path);
    }
    if (access(parent, W_OK | X_OK) < 0) {
        return error_set(err, errno, "cannot write %.200s: %s", path, strerror(errno));
    }
    return 0;
}

int bundle_write(struct cli *cli, const json_t *doctor, const char *path, struct error *err)
{
    struct bundle b = {.cli = cli, .dir_fd = -1};
    char stage[] = STAGE_TEMPLATE;
    char top[sizeof(stage) + 16];
    int r;

    if (mkdtemp(stage) == NULL) {
        return error_set(err, errno, "cannot make %s: %s", stage, strerror(errno));
    }
    (void)umask(0077);
    (void)snprintf(top, sizeof(top), "%s/space-bundle", stage);
    if (mkdir(top, 0700) == 0) {
        b.dir_fd = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (b.dir_fd >= 0) {
        if (cli_connect(cli, NULL) < 0 ||
            config_read_key_file(cli->settings.admin_key_file, b.admin_key, NULL) < 0) {
            cli_progress(cli, "no key is known here; keys are recognised by their form");
        }
        b.secrets[0] = b.admin_key;
        b.secrets[1] = cli->config.key;
        stage_all(&b, doctor);
        r = pack(stage, path, err);
        (void)close(b.dir_fd);
    } else {
        r = error_set(err, errno, "cannot make %s: %s", top, strerror(errno));
    }
    explicit_bzero(b.admin_key, sizeof(b.admin_key));
    if (dir_remove_tree(AT_FDCWD, stage) < 0) {
        cli_note("space: could not remove %s", stage);
    }
    return r;
}
