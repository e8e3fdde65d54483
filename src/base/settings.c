#include "base/settings.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>

#include "base/buf.h"
#include "base/fd.h"

#define SETTINGS_FILE_LIMIT (256U * 1024U)

enum setting_type {
    SETTING_TEXT,
    SETTING_PATH,
    SETTING_NAME,
    SETTING_CHOICE,
    SETTING_NUMBER
};

struct setting {
    const char *key;
    enum setting_type type;
    size_t offset;
    size_t size; /* of a text field */
    uint64_t min;
    uint64_t max;
    const char *initial; /* as it stands in the file */
    const char *choices; /* "a|b|c" */
    const char *help;
};

#define TEXT_FIELD(f)   offsetof(struct settings, f), sizeof(((struct settings *)NULL)->f), 0, 0
#define NUMBER_FIELD(f) offsetof(struct settings, f), 0

static const struct setting settings_table[] = {
    {"format", SETTING_NUMBER, NUMBER_FIELD(format), 1, 1, "1", NULL,
     "Format of this file. A release refuses a number that it does not know."},
    {"installation", SETTING_NAME, TEXT_FIELD(installation), "space", NULL,
     "Name of this installation, 1 to 8 lower-case letters and digits, a letter first. It goes "
     "into\n"
     "every host-wide name (cgroups, network namespaces), so it differs between installations."},
    {"data_dir", SETTING_PATH, TEXT_FIELD(data_dir), "/var/lib/space", NULL,
     "Everything that must survive a restart: store, templates, disks, output."},
    {"run_dir", SETTING_PATH, TEXT_FIELD(run_dir), "/run/space", NULL,
     "Sockets and process ids; emptied by a reboot."},
    {"log_dir", SETTING_PATH, TEXT_FIELD(log_dir), "/var/log/space", NULL,
     "Log files where systemd does not collect them."},
    {"log_level", SETTING_CHOICE, TEXT_FIELD(log_level), "info", "error|warning|info|debug",
     "Least important level that is logged."},
    {"service_user", SETTING_TEXT, TEXT_FIELD(service_user), "space", NULL,
     "The unprivileged system user that space-api runs as."},
    {"admin_key_file", SETTING_PATH, TEXT_FIELD(admin_key_file), "/etc/space/admin.key", NULL,
     "Where the first API key is written, readable by root alone."},
    {"volume_size_gib", SETTING_NUMBER, NUMBER_FIELD(volume_size_gib), 0, 65536, "0", NULL,
     "Size of the XFS volume that is made when the data directory's filesystem cannot clone files\n"
     "(no reflink). 0: half of the free space, 8 to 64. Read once, when the volume is made."},

    {"api.listen", SETTING_TEXT, TEXT_FIELD(api_listen), "127.0.0.1:8700", NULL,
     "ADDRESS:PORT of the HTTP API; IPv6 as [::1]:8700. Use TLS on any address but loopback."},
    {"api.tls_certificate", SETTING_TEXT, TEXT_FIELD(api_tls_certificate), "", NULL,
     "PEM file with the certificate chain. Empty: plain HTTP."},
    {"api.tls_key", SETTING_TEXT, TEXT_FIELD(api_tls_key), "", NULL,
     "PEM file with the private key, readable by the service user."},
    {"api.domain", SETTING_TEXT, TEXT_FIELD(api_domain), "space.localhost", NULL,
     "Ports of sandboxes are served at <port>-<sandbox>.DOMAIN on the same address. Never a "
     "domain\n"
     "that serves anything else. Browsers take every name below localhost for this machine."},
    {"api.public_url", SETTING_TEXT, TEXT_FIELD(api_public_url), "", NULL,
     "How clients reach this API, for URLs in answers, e.g. https://space.example.com.\n"
     "Empty: made from the Host header of the request."},
    {"api.max_connections", SETTING_NUMBER, NUMBER_FIELD(api_max_connections), 16, 100000, "4096",
     NULL, "Client connections at once; more are answered 503 and closed."},
    {"api.max_body_bytes", SETTING_NUMBER, NUMBER_FIELD(api_max_body_bytes), 65536, 1073741824,
     "8388608", NULL, "Largest JSON request body."},
    {"api.key_concurrency", SETTING_NUMBER, NUMBER_FIELD(api_key_concurrency), 1, 100000, "256",
     NULL, "Requests at once per key; more get 429."},
    {"api.key_streams", SETTING_NUMBER, NUMBER_FIELD(api_key_streams), 1, 100000, "2048", NULL,
     "Event streams at once per key; more get 429."},
    {"api.key_rate", SETTING_NUMBER, NUMBER_FIELD(api_key_rate), 1, 1000000, "1000", NULL,
     "Requests per second per key, on average."},
    {"api.key_burst", SETTING_NUMBER, NUMBER_FIELD(api_key_burst), 1, 1000000, "2000", NULL,
     "Requests per key that may come at once before the rate applies."},
    {"api.header_timeout_ms", SETTING_NUMBER, NUMBER_FIELD(api_header_timeout_ms), 100, 600000,
     "30000", NULL, "Time for a request's head to arrive."},
    {"api.idle_timeout_ms", SETTING_NUMBER, NUMBER_FIELD(api_idle_timeout_ms), 100, 3600000,
     "75000", NULL, "Time without a byte before an idle connection or a stalled body is closed."},
    {"api.operation_keep_hours", SETTING_NUMBER, NUMBER_FIELD(api_operation_keep_hours), 24, 8760,
     "72", NULL, "Finished operations and deleted sandboxes are remembered this long."},
    {"api.operation_timeout_seconds", SETTING_NUMBER, NUMBER_FIELD(api_operation_timeout_seconds),
     1, 86400, "300", NULL,
     "Time for a pause, suspend, wake, checkpoint, fork, rollback or template, the wait for its\n"
     "turn included. One that the node is at work on goes on until it answers."},
    {"api.unknown_checkpoint_seconds", SETTING_NUMBER, NUMBER_FIELD(api_unknown_checkpoint_seconds),
     0, 31536000, "86400", NULL,
     "How long a node keeps checkpoints that the store does not know, as after the restore of an\n"
     "older one, from when space-api finds them."},
    {"quota.sandboxes", SETTING_NUMBER, NUMBER_FIELD(quota_sandboxes), 0, 1000000, "0", NULL,
     "Living sandboxes per key. 0: no quota."},
    {"quota.vcpus", SETTING_NUMBER, NUMBER_FIELD(quota_vcpus), 0, 1000000, "0", NULL,
     "Sum of vCPUs of a key's living sandboxes. 0: no quota."},
    {"quota.memory_mib", SETTING_NUMBER, NUMBER_FIELD(quota_memory_mib), 0, 1000000000, "0", NULL,
     "Sum of memory of a key's living sandboxes, in MiB. 0: no quota."},

    {"node.name", SETTING_TEXT, TEXT_FIELD(node_name), "local", NULL,
     "Name of this node in sandbox records."},
    {"node.qemu", SETTING_TEXT, TEXT_FIELD(node_qemu), "qemu-system-x86_64", NULL,
     "The VMM's program, by path or by name."},
    {"node.accelerator", SETTING_CHOICE, TEXT_FIELD(node_accelerator), "auto", "auto|kvm|tcg",
     "auto boots a tiny guest once to see whether KVM works and falls back to TCG emulation."},
    {"node.cpu", SETTING_CHOICE, TEXT_FIELD(node_cpu), "host", "host|x86-64-v2|x86-64-v3",
     "Processor of guests under KVM. host: this machine's own. A level: snapshots also wake on "
     "other\n"
     "machines of the same vendor that have it."},
    {"node.vmm_uid_first", SETTING_NUMBER, NUMBER_FIELD(node_vmm_uid_first), 10000, 4000000000,
     "700000", NULL, "First user id of the range that VMM processes run as, one id each."},
    {"node.vmm_uid_count", SETTING_NUMBER, NUMBER_FIELD(node_vmm_uid_count), 16, 1000000, "8192",
     NULL, "Size of that range. It must not overlap another installation's."},
    {"node.max_sandboxes", SETTING_NUMBER, NUMBER_FIELD(node_max_sandboxes), 1, 100000, "1000",
     NULL, "Sandboxes on this node, whatever their size."},
    {"node.memory_reserve_mib", SETTING_NUMBER, NUMBER_FIELD(node_memory_reserve_mib), 0, 1048576,
     "0", NULL, "Memory kept for the host and the daemons. 0: an eighth of RAM, at least 1024."},
    {"node.memory_overcommit", SETTING_NUMBER, NUMBER_FIELD(node_memory_overcommit), 100, 10000,
     "400", NULL, "Sum of sandbox memory admitted, in percent of RAM less the reserve."},
    {"node.disk_reserve_mib", SETTING_NUMBER, NUMBER_FIELD(node_disk_reserve_mib), 0, 1048576,
     "1024", NULL, "Creates are refused when the volume has less free space than this."},
    {"node.boot_timeout_ms", SETTING_NUMBER, NUMBER_FIELD(node_boot_timeout_ms), 1000, 600000,
     "120000", NULL, "Deadline of a boot from the kernel (template and size builds)."},
    {"node.start_timeout_ms", SETTING_NUMBER, NUMBER_FIELD(node_start_timeout_ms), 1000, 600000,
     "30000", NULL, "Deadline of a restore and its handshake."},
    {"node.silence_timeout_ms", SETTING_NUMBER, NUMBER_FIELD(node_silence_timeout_ms), 1000, 600000,
     "60000", NULL,
     "How long a guest may take to fall silent for a pause, suspend or checkpoint. Then the\n"
     "request fails and the sandbox runs on."},
    {"node.probe_timeout_ms", SETTING_NUMBER, NUMBER_FIELD(node_probe_timeout_ms), 1000, 60000,
     "5000", NULL,
     "How long a test guest under KVM may take to the first word of its kernel. Then it has 4\n"
     "times as long between two words, and 12 times as long in all; after that KVM counts as\n"
     "unusable and sandboxes are emulated until the machine's next boot."},
    {"node.prepared_pool", SETTING_NUMBER, NUMBER_FIELD(node_prepared_pool), 0, 256, "4", NULL,
     "VMMs that wait, spawned and jailed, for a size that has no warm sandbox."},
    {"node.warm_pools", SETTING_TEXT, TEXT_FIELD(node_warm_pools), "auto", NULL,
     "Warm sandboxes per template: `auto` (base, as many as fit in 10 % of memory, 4 to 16), or\n"
     "NAME=COUNT pairs with commas, for example base=8,python=2. NAME=0 turns one off."},
    {"node.bases_per_template", SETTING_NUMBER, NUMBER_FIELD(node_bases_per_template), 1, 64, "8",
     NULL, "Base snapshots (one per vCPU and memory size) kept per template."},
    {"node.template_versions", SETTING_NUMBER, NUMBER_FIELD(node_template_versions), 0, 10000,
     "256", NULL, "Most versions of templates made from checkpoints. 0: none can be made."},
    {"node.template_versions_per_key", SETTING_NUMBER, NUMBER_FIELD(node_template_versions_per_key),
     0, 10000, "64", NULL, "Most of them that one key may have made. 0: none can be made."},
    {"node.tcg_tb_mib", SETTING_NUMBER, NUMBER_FIELD(node_tcg_tb_mib), 16, 1024, "64", NULL,
     "Translation buffer of an emulated sandbox. Below 64 Python slows down."},
    {"node.spool_bytes", SETTING_NUMBER, NUMBER_FIELD(node_spool_bytes), 65536, 1099511627776,
     "67108864", NULL, "Output kept per session; the oldest goes first."},
    {"node.session_keep_minutes", SETTING_NUMBER, NUMBER_FIELD(node_session_keep_minutes), 1,
     100000, "60", NULL, "How long output and results stay readable after a process ended."},
    {"node.spool_total_mib", SETTING_NUMBER, NUMBER_FIELD(node_spool_total_mib), 1, 1048576, "1024",
     NULL,
     "Output kept per sandbox, all sessions together; ended sessions go first, oldest first."},
    {"node.max_attached", SETTING_NUMBER, NUMBER_FIELD(node_max_attached), 1, 100000, "1024", NULL,
     "Readers and terminals attached to a sandbox's sessions at once."},
    {"node.max_watches", SETTING_NUMBER, NUMBER_FIELD(node_max_watches), 1, 10000, "64", NULL,
     "File watches per sandbox."},
    {"node.max_transfers", SETTING_NUMBER, NUMBER_FIELD(node_max_transfers), 1, 400, "64", NULL,
     "Transfers of file content and archives per sandbox at once; 256 further ones wait,\n"
     "more are refused (limit_exceeded)."},
    {"node.max_connections", SETTING_NUMBER, NUMBER_FIELD(node_max_connections), 1, 400, "256",
     NULL, "Connections to ports of a sandbox at once."},
    {"node.metrics_interval_seconds", SETTING_NUMBER, NUMBER_FIELD(node_metrics_interval_seconds),
     1, 3600, "5", NULL, "Time between two samples of a sandbox's metrics."},
    {"node.metrics_keep_minutes", SETTING_NUMBER, NUMBER_FIELD(node_metrics_keep_minutes), 1, 1440,
     "60", NULL, "How long samples are kept, in memory."},
    {"node.max_processes", SETTING_NUMBER, NUMBER_FIELD(node_max_processes), 1, 100000, "1024",
     NULL, "Running commands per sandbox; records of ended ones make room, the oldest first."},

    {"objects.store", SETTING_TEXT, TEXT_FIELD(objects_store), "local", NULL,
     "Where a second copy of suspended sandboxes and checkpoints goes, compressed: `local` (the\n"
     "directory objects in data_dir), a directory of another disk or of a network, s3://BUCKET or\n"
     "s3://BUCKET/PREFIX, or `none`. One installation per directory or prefix."},
    {"objects.endpoint", SETTING_TEXT, TEXT_FIELD(objects_endpoint), "https://s3.amazonaws.com",
     NULL,
     "Of s3://: the server, https://HOST or https://HOST:PORT. Buckets are named in the path."},
    {"objects.region", SETTING_TEXT, TEXT_FIELD(objects_region), "us-east-1", NULL,
     "Of s3://: the region that requests are signed for."},
    {"objects.keys_file", SETTING_PATH, TEXT_FIELD(objects_keys_file), "/etc/space/objects.keys",
     NULL,
     "Of s3://: a file of root's with mode 0600 and the lines access_key = ..., secret_key = ...\n"
     "and, if there is one, session_token = ..."},
    {"objects.garbage_seconds", SETTING_NUMBER, NUMBER_FIELD(objects_garbage_seconds), 1, 31536000,
     "86400", NULL, "How long what no snapshot refers to any more is kept in the object store."},
};

#define SETTINGS_COUNT (sizeof(settings_table) / sizeof(settings_table[0]))

static char *text_field(struct settings *s, const struct setting *row)
{
    return (char *)s + row->offset;
}

static uint64_t *number_field(struct settings *s, const struct setting *row)
{
    return (uint64_t *)(void *)((char *)s + row->offset);
}

static bool is_name(const char *value)
{
    size_t n = strnlen(value, 9);

    if (n == 0 || n > 8 || value[0] < 'a' || value[0] > 'z') {
        return false;
    }
    return strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789") == n;
}

static bool is_choice(const char *choices, const char *value)
{
    struct span rest = span_of_str(choices);

    while (rest.n > 0) {
        size_t bar = span_find(rest, 0, '|');

        if (span_equals_str(span_head(rest, bar), value)) {
            return true;
        }
        rest = span_skip(rest, bar + 1);
    }
    return false;
}

static int
set_number(struct settings *s, const struct setting *row, const char *value, struct error *err)
{
    uint64_t number;

    if (span_parse_u64(span_of_str(value), UINT64_MAX, &number) < 0 || number < row->min ||
        number > row->max) {
        if (row->min == row->max) {
            return error_set_code(err, ERROR_INVALID_REQUEST, row->key,
                                  "%s must be %" PRIu64 " in this release, got %.40s", row->key,
                                  row->min, value);
        }
        return error_set_code(err, ERROR_INVALID_REQUEST, row->key,
                              "%s must be a number from %" PRIu64 " to %" PRIu64 ", got %.40s",
                              row->key, row->min, row->max, value);
    }
    *number_field(s, row) = number;
    return 0;
}

static int
set_text(struct settings *s, const struct setting *row, const char *value, struct error *err)
{
    const char *want = NULL;

    if (row->type == SETTING_PATH && value[0] != '/') {
        want = "an absolute path";
    } else if (row->type == SETTING_NAME && !is_name(value)) {
        want = "1 to 8 lower-case letters and digits, a letter first";
    } else if (row->type == SETTING_CHOICE && !is_choice(row->choices, value)) {
        want = row->choices;
    } else if (strlen(value) >= row->size) {
        want = "shorter";
    }
    if (want != NULL) {
        return error_set_code(err, ERROR_INVALID_REQUEST, row->key, "%s must be %s, got %.60s",
                              row->key, want, value);
    }
    (void)snprintf(text_field(s, row), row->size, "%s", value);
    return 0;
}

static const struct setting *setting_find(const char *key)
{
    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        if (strcmp(settings_table[i].key, key) == 0) {
            return &settings_table[i];
        }
    }
    return NULL;
}

int settings_set(struct settings *s, const char *key, const char *value, struct error *err)
{
    const struct setting *row = setting_find(key);

    if (row == NULL) {
        (void)error_set_code(err, ERROR_INVALID_REQUEST, key, "unknown key %.60s", key);
        return -ENOENT;
    }
    return row->type == SETTING_NUMBER ? set_number(s, row, value, err)
                                       : set_text(s, row, value, err);
}

void settings_init(struct settings *s)
{
    memset(s, 0, sizeof(*s));
    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        if (settings_set(s, settings_table[i].key, settings_table[i].initial, NULL) < 0) {
            abort(); /* a default that its own row refuses: caught by every start and test */
        }
    }
}

static struct span trim(struct span s)
{
    while (s.n > 0 && (s.p[0] == ' ' || s.p[0] == '\t')) {
        s = span_skip(s, 1);
    }
    while (s.n > 0 && (s.p[s.n - 1] == ' ' || s.p[s.n - 1] == '\t' || s.p[s.n - 1] == '\r')) {
        s = span_head(s, s.n - 1);
    }
    return s;
}

/* One line that is neither blank nor a comment. */
static int parse_line(struct settings *s, struct span line, bool *seen, struct error *err)
{
    size_t equals = span_find(line, 0, '=');
    char key[64];
    char value[600];
    const struct setting *row;

    if (equals == line.n || span_copy_str(trim(span_head(line, equals)), key, sizeof(key)) < 0 ||
        span_copy_str(trim(span_skip(line, equals + 1)), value, sizeof(value)) < 0) {
        return error_set_code(err, ERROR_INVALID_REQUEST, NULL, "expected `key = value`");
    }
    row = setting_find(key);
    if (row != NULL && seen[row - settings_table]) {
        return error_set_code(err, ERROR_INVALID_REQUEST, key, "%s is set twice", key);
    }
    if (row != NULL) {
        seen[row - settings_table] = true;
    }
    return settings_set(s, key, value, err);
}

int settings_parse(struct settings *s, const char *text, const char *name, struct error *err)
{
    struct span rest = span_of_str(text);
    bool seen[SETTINGS_COUNT] = {false};
    unsigned int number = 0;

    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\n');
        struct span line = trim(span_head(rest, end));

        rest = span_skip(rest, end + 1);
        number++;
        if (line.n == 0 || line.p[0] == '#') {
            continue;
        }
        if (parse_line(s, line, seen, err) < 0) {
            (void)error_wrap(err, "%s line %u", name, number);
            return -EINVAL;
        }
    }
    if ((s->api_tls_certificate[0] == '\0') != (s->api_tls_key[0] == '\0')) {
        return error_set_code(err, ERROR_INVALID_REQUEST, "api.tls_key",
                              "%s: api.tls_certificate and api.tls_key go together", name);
    }
    return 0;
}

int settings_load(struct settings *s, const char *path, struct error *err)
{
    _cleanup_buf_ struct buf text = buf_make(SETTINGS_FILE_LIMIT);
    int r;

    settings_init(s);
    r = file_read(AT_FDCWD, path, SETTINGS_FILE_LIMIT, &text);
    if (r < 0) {
        return error_set(err, -r, "cannot read %.150s: %s", path, strerror(-r));
    }
    if (text.n > 0 && span_find(buf_span(&text), 0, 0) != text.n) {
        return error_set_code(err, ERROR_INVALID_REQUEST, NULL, "%.150s holds a NUL byte", path);
    }
    return settings_parse(s, buf_str(&text), path, err);
}

static void format_help(const struct setting *row, struct buf *out)
{
    struct span rest = span_of_str(row->help);

    while (rest.n > 0) {
        size_t end = span_find(rest, 0, '\n');

        buf_put_str(out, "# ");
        buf_put(out, span_head(rest, end));
        buf_put_str(out, "\n");
        rest = span_skip(rest, end + 1);
    }
    if (row->type == SETTING_NUMBER && row->min != row->max) {
        buf_printf(out, "# Range: %" PRIu64 " to %" PRIu64 ".\n", row->min, row->max);
    } else if (row->type == SETTING_CHOICE) {
        buf_printf(out, "# One of: %s.\n", row->choices);
    }
}

void settings_format(const struct settings *s, struct buf *out)
{
    buf_put_str(out,
                "# Settings of a SPACE installation. Every key is here with its default value;\n"
                "# `space up` and a restart of the daemons apply a change.\n");
    for (size_t i = 0; i < SETTINGS_COUNT; i++) {
        const struct setting *row = &settings_table[i];
        const char *field = (const char *)s + row->offset;

        buf_put_str(out, "\n");
        format_help(row, out);
        if (row->type == SETTING_NUMBER) {
            uint64_t number;

            memcpy(&number, field, sizeof(number));
            buf_printf(out, "%s = %" PRIu64 "\n", row->key, number);
        } else {
            buf_printf(out, "%s = %s\n", row->key, field);
        }
    }
}
