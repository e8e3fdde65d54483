#include "guest/service.h"

#include <errno.h>

#include "base/fd.h"
#include "guest/users.h"
#include "wire/agent_process.h"

#define OUT_GATHER_BYTES 32768U
#define MODE_MAX         07777U

static const struct {
    const char *name;
    service_run run;
} services[] = {
    {"file-delete", service_file_delete},
    {"file-list", service_file_list},
    {"file-make-directory", service_file_make_directory},
    {"file-move", service_file_move},
    {"file-read", service_file_read},
    {"file-set-mode", service_file_set_mode},
    {"file-set-owner", service_file_set_owner},
    {"file-stat", service_file_stat},
    {"file-write", service_file_write},
    {"ports", service_ports},
    {"tar-read", service_tar_read},
    {"tar-write", service_tar_write},
    {"watch", service_watch},
};

service_run service_find(struct span name)
{
    for (size_t i = 0; i < sizeof(services) / sizeof(services[0]); i++) {
        if (span_equals_str(name, services[i].name)) {
            return services[i].run;
        }
    }
    return NULL;
}

const char *service_arg(const struct service *s, size_t i)
{
    return i < s->argc ? s->argv[i] : "";
}

int service_arg_flag(const struct service *s, size_t i, const char *word)
{
    const char *arg = service_arg(s, i);

    if (arg[0] == '\0') {
        return 0;
    }
    return strcmp(arg, word) == 0 ? 1 : -EINVAL;
}

int service_arg_mode(const struct service *s, size_t i, mode_t *ret_mode)
{
    const char *arg = service_arg(s, i);
    mode_t mode = 0;

    if (arg[0] == '\0') {
        return -EINVAL;
    }
    for (; *arg != '\0'; arg++) {
        if (*arg < '0' || *arg > '7') {
            return -EINVAL;
        }
        mode = mode * 8 + (mode_t)(*arg - '0');
        if (mode > MODE_MAX) {
            return -EINVAL;
        }
    }
    *ret_mode = mode;
    return 0;
}

int service_fail(struct service *s, int r, const char *path)
{
    size_t n = strnlen(path, SERVICE_PATH_BYTES);

    buf_clear(&s->fault);
    buf_put(&s->fault, span_make(path, n));
    return r;
}

int service_fail_below(struct service *s, int r, const char *path, const char *below)
{
    _cleanup_buf_ struct buf whole = buf_make(0);

    buf_put_str(&whole, path);
    buf_put_str(&whole, "/");
    buf_put_str(&whole, below);
    return service_fail(s, r, buf_error(&whole) == 0 ? buf_str(&whole) : path);
}

int service_flush(struct service *s)
{
    int r = buf_error(&s->out);

    if (r == 0) {
        r = fd_write_all(SERVICE_OUT, buf_span(&s->out));
    }
    buf_clear(&s->out);
    return r;
}

int service_flush_some(struct service *s)
{
    return s->out.n < OUT_GATHER_BYTES ? buf_error(&s->out) : service_flush(s);
}

void service_put_done(struct service *s, uint64_t count, bool more)
{
    service_done_format(&s->out, &(struct service_done){count, more});
}

int service_begin_body(struct service *s, uint64_t offset, uint64_t length)
{
    service_body_format(&s->out, &(struct service_body){offset, length});
    s->is_raw = true;
    return service_flush(s);
}

/* Copies the strings, with their ends, for those who want them so. */
static int take_arguments(struct service *s, const struct agent_strings *list)
{
    struct span rest = list->raw;
    struct span arg;
    char *to;

    s->text = malloc(list->raw.n + list->count);
    s->argv = calloc(list->count, sizeof(*s->argv));
    if (s->text == NULL || s->argv == NULL) {
        return -ENOMEM;
    }
    to = s->text;
    (void)agent_strings_next(&rest, &arg); /* the name */
    while (agent_strings_next(&rest, &arg)) {
        if (arg.n > 0) {
            memcpy(to, arg.p, arg.n);
        }
        to[arg.n] = '\0';
        s->argv[s->argc++] = to;
        to += arg.n + 1;
    }
    return 0;
}

static int report(struct service *s, int r)
{
    struct service_error m = {(uint32_t)-r, buf_span(&s->fault)};

    if (s->is_raw) {
        return 1;
    }
    /* The ENTRYs that a service put before it failed stand. */
    if (buf_error(&s->out) != 0) {
        buf_clear(&s->out);
    }
    service_error_format(&s->out, &m);
    return service_flush(s) < 0 ? 1 : 0;
}

int service_main(void *arg, const struct spawn_failure *failure)
{
    const struct service_call *call = arg;
    struct service s = {.user = call->user, .out = buf_make(0), .fault = buf_make(0)};
    int r = take_arguments(&s, &call->start->argv);

    accounts_init(&s.accounts);
    if (failure->errnum != 0) {
        buf_put(&s.fault, failure->what == AGENT_WHAT_CWD ? call->start->cwd : span_make(NULL, 0));
        return report(&s, -failure->errnum);
    }
    if (r == 0) {
        r = call->run(&s);
    }
    if (r == 0) {
        r = service_flush(&s);
    }
    /* The process ends: what it has goes with it. */
    return r == 0 ? 0 : report(&s, r);
}
