/* What a service of the agent has while it runs, in the child that is a copy of the agent
 * (docs/agent-protocol.md, section 7). Descriptor 0 is its input, 1 its output, and the user and
 * directory are set. Output goes through `out`; a service returns 0 after its last record or byte,
 * or -errno, which becomes the ERROR record (before BODY) or a bad exit status (after it). */
#pragma once

#include <sys/stat.h>

#include "base/buf.h"
#include "guest/accounts.h"
#include "guest/spawn.h"
#include "wire/service_record.h"

struct agent_start;
struct user;

#define SERVICE_IN  0
#define SERVICE_OUT 1

struct service {
    size_t argc;
    char **argv; /* the arguments, without the name */
    char *text;  /* behind them */
    const struct user *user;
    struct accounts accounts;
    struct buf out;
    struct buf fault; /* the path that ERROR names */
    bool is_raw;      /* BODY is out: a failure cuts the stream off */
};

typedef int (*service_run)(struct service *s);

/* The service of that name that a child does; NULL when there is none. */
service_run service_find(struct span name);

struct service_call {
    service_run run;
    const struct agent_start *start;
    const struct user *user;
};

/* The whole life of a service's child: a spawn_work, whose argument is a struct service_call. */
int service_main(void *arg, const struct spawn_failure *failure);

/* ---- for services ---- */

/* The i-th argument, "" when there are fewer. */
const char *service_arg(const struct service *s, size_t i);
/* Whether the argument is this word. -EINVAL when it is neither that nor "". */
int service_arg_flag(const struct service *s, size_t i, const char *word) _must_check_;
/* An octal mode, at most 07777. -EINVAL. */
int service_arg_mode(const struct service *s, size_t i, mode_t *ret_mode) _must_check_;

/* Notes the path at fault and returns r. */
int service_fail(struct service *s, int r, const char *path);
/* The same for path/below. */
int service_fail_below(struct service *s, int r, const char *path, const char *below);
/* Writes what is gathered. 0 or -errno. */
int service_flush(struct service *s) _must_check_;
/* Writes it when it is much. 0 or -errno. */
int service_flush_some(struct service *s) _must_check_;
void service_put_done(struct service *s, uint64_t count, bool more);
/* BODY, sent at once: bytes follow. 0 or -errno. */
int service_begin_body(struct service *s, uint64_t offset, uint64_t length) _must_check_;

int service_file_delete(struct service *s);
int service_file_list(struct service *s);
int service_file_make_directory(struct service *s);
int service_file_move(struct service *s);
int service_file_read(struct service *s);
int service_file_set_mode(struct service *s);
int service_file_set_owner(struct service *s);
int service_file_stat(struct service *s);
int service_file_write(struct service *s);
int service_ports(struct service *s);
int service_tar_read(struct service *s);
int service_tar_write(struct service *s);
int service_watch(struct service *s);
