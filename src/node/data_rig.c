#include "node/data_rig.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>

#include <sys/stat.h>
#include <sys/wait.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/id.h"
#include "base/list.h"
#include "base/log.h"
#include "io/json_request.h"
#include "io/loop.h"
#include "node/agent.h"
#include "node/data.h"
#include "node/node.h"
#include "node/sandbox_boot.h"

#define CONNECT_TRIES    500
#define CONNECT_PAUSE_MS 10
#define BEGIN_MS         20000
#define RESTING_LOOK_MS  50

struct waiter {
    struct list link;
    sandbox_wait_fn fn;
    void *arg;
};

struct sandbox {
    struct list link;
    struct node *node;
    struct sandbox_info info;
    struct agent *agent;
    struct process_table *processes;
    struct services *services;
    json_t *env;
    int dir_fd;
    pid_t pid;
    int tries;
    bool adopted;
    bool identified;
    unsigned int holds;
    bool taken; /* frames are taken */
    struct loop_timer *timer;
    struct list running_waits;
    struct list gone_waits;
};

/* struct node_parts of the real program, here. */
struct node_parts {
    struct data_rig_options options;
    uint64_t timeout_guard_ms; /* 0: the default */
    uint64_t checkpoints;
    char agent_mode[32];
    struct list sandboxes;
    int sandboxes_fd;
};

unsigned int data_rig_checkpoints(const struct node *node)
{
    return (unsigned int)node->parts->checkpoints;
}

/* ---- records ---- */

const struct sandbox_info *sandbox_info(const struct sandbox *sb)
{
    return &sb->info;
}

const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {"creating",   "running",   "pausing",  "paused", "waking",
                                        "suspending", "suspended", "deleting", "error",  "deleted"};

    return names[state];
}

json_t *sandbox_describe(const struct sandbox *sb)
{
    json_t *reason = json_null();
    char active[CLOCK_TEXT_SIZE];

    clock_format(sb->info.active_at_ms, active);
    if (sb->info.reason_code[0] != '\0') {
        reason = json_pack("{s:s, s:s}", "code", sb->info.reason_code, "message",
                           sb->info.reason_message);
    }
    return json_pack("{s:s, s:s, s:o, s:s, s:i, s:s}", "id", sb->info.id, "state",
                     sandbox_state_name(sb->info.state), "reason", reason, "template",
                     sb->info.template_name, "vcpus", (int)sb->info.vcpus, "active_at", active);
}

struct sandbox *sandbox_find(struct node *node, const char *id)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (strcmp(sb->info.id, id) == 0) {
            return sb;
        }
    }
    return NULL;
}

struct sandbox *sandbox_next(struct node *node, unsigned int *index)
{
    unsigned int i = 0;
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->sandboxes)
    {
        if (i++ == *index) {
            (*index)++;
            return list_entry(it, struct sandbox, link);
        }
    }
    return NULL;
}

unsigned int sandbox_count(const struct node *node)
{
    unsigned int n = 0;

    for (const struct list *it = node->parts->sandboxes.next; it != &node->parts->sandboxes;
         it = it->next) {
        n++;
    }
    return n;
}

struct agent *sandbox_agent(const struct sandbox *sb)
{
    return sb->taken ? sb->agent : NULL;
}

struct process_table *sandbox_processes(const struct sandbox *sb)
{
    return sb->processes;
}

void sandbox_set_processes(struct sandbox *sb, struct process_table *processes)
{
    sb->processes = processes;
}

struct services *sandbox_services(const struct sandbox *sb)
{
    return sb->services;
}

void sandbox_set_services(struct sandbox *sb, struct services *services)
{
    sb->services = services;
}

int sandbox_cpu_ns(const struct sandbox *sb, uint64_t *ret_ns)
{
    return sb->pid <= 0 ? -ESRCH : clock_of_process_ns(sb->pid, ret_ns);
}

void sandbox_touch(struct sandbox *sb)
{
    sb->info.active_at_ms = clock_real_ms();
}

json_t *sandbox_env(const struct sandbox *sb)
{
    return sb->env;
}

int sandbox_merge_env(struct sandbox *sb, json_t *changes, struct error *err)
{
    (void)err;
    (void)json_object_update(sb->env, changes);
    return 0;
}

int sandbox_dir_fd(const struct sandbox *sb)
{
    return sb->dir_fd;
}

int sandbox_read_console(struct sandbox *sb, sandbox_console_fn fn, void *arg)
{
    _cleanup_buf_ struct buf text = buf_make(0);

    (void)sb;
    buf_put_str(&text, "console\n");
    fn(arg, &text, NULL);
    return 0;
}

int sandbox_require_running(const struct sandbox *sb, struct error *err)
{
    if (sb->info.state == SANDBOX_STATE_RUNNING) {
        return 0;
    }
    return error_set_code(err, ERROR_FAILED_PRECONDITION, sandbox_state_name(sb->info.state),
                          "the sandbox is not running");
}

/* ---- lifecycle ---- */

static void set_state(struct sandbox *sb, enum sandbox_state state)
{
    sb->info.state = state;
    sb->node->hooks.on_change(sb->node->hooks_ctx, sb);
}

bool sandbox_is_resting(const struct sandbox *sb)
{
    return sb->info.state == SANDBOX_STATE_PAUSED;
}

int64_t sandbox_paused_ms(const struct sandbox *sb)
{
    return sb->info.paused_total_ms;
}

int64_t sandbox_timer_delay(const struct sandbox *sb, int64_t left_ms)
{
    return sandbox_is_resting(sb) && left_ms < RESTING_LOOK_MS ? RESTING_LOOK_MS : left_ms;
}

struct changed {
    struct sandbox *sb;
    sandbox_wait_fn fn;
    void *arg;
};

static struct changed *changed_new(struct sandbox *sb, sandbox_wait_fn fn, void *arg)
{
    struct changed *changed = calloc(1, sizeof(*changed));

    if (changed == NULL) {
        abort();
    }
    *changed = (struct changed){sb, fn, arg};
    return changed;
}

static void tell_changed(void *arg)
{
    struct changed *changed = arg;

    changed->fn(changed->arg, changed->sb, NULL);
    free(changed);
}

int sandbox_pause(struct sandbox *sb,
                  const struct sandbox_reason *reason,
                  sandbox_wait_fn fn,
                  void *arg,
                  struct error *err)
{
    if (sb->info.state != SANDBOX_STATE_PAUSED) {
        if (sandbox_require_running(sb, err) < 0) {
            return -EBUSY;
        }
        (void)snprintf(sb->info.reason_code, sizeof(sb->info.reason_code), "%s", reason->code);
        (void)snprintf(sb->info.reason_message, sizeof(sb->info.reason_message), "%s",
                       reason->message);
        set_state(sb, SANDBOX_STATE_PAUSED);
    }
    return loop_defer(sb->node->loop, tell_changed, changed_new(sb, fn, arg));
}

int sandbox_suspend(struct sandbox *sb,
                    const struct sandbox_reason *reason,
                    sandbox_wait_fn fn,
                    void *arg,
                    struct error *err)
{
    return sandbox_pause(sb, reason, fn, arg, err); /* nothing of it is the data side's */
}

int sandbox_wake(struct sandbox *sb, sandbox_wait_fn fn, void *arg, struct error *err)
{
    if (sb->info.state == SANDBOX_STATE_PAUSED) {
        sb->info.reason_code[0] = '\0';
        set_state(sb, SANDBOX_STATE_RUNNING);
    }
    if (sandbox_require_running(sb, err) < 0) {
        return -EBUSY;
    }
    return loop_defer(sb->node->loop, tell_changed, changed_new(sb, fn, arg));
}

/* Its guest is not started anew: what the data side does with it is asked for by the hook. */
int sandbox_boot(struct sandbox *sb, sandbox_wait_fn fn, void *arg, struct error *err)
{
    if (sb->info.state != SANDBOX_STATE_ERROR) {
        return sandbox_wake(sb, fn, arg, err);
    }
    if (sb->node->hooks.on_booted(sb->node->hooks_ctx, sb) < 0) {
        return error_set(err, EIO, "the records cannot be written");
    }
    sb->info.reason_code[0] = '\0';
    set_state(sb, SANDBOX_STATE_RUNNING);
    return loop_defer(sb->node->loop, tell_changed, changed_new(sb, fn, arg));
}

static void tell(struct list *waits, struct sandbox *sb, const struct error *err)
{
    while (!list_is_empty(waits)) {
        struct waiter *waiter = list_entry(waits->next, struct waiter, link);
        sandbox_wait_fn fn = waiter->fn;
        void *arg = waiter->arg;

        list_remove(&waiter->link);
        free(waiter);
        fn(arg, sb, err);
    }
}

static int add_wait(struct list *waits, sandbox_wait_fn fn, void *arg)
{
    struct waiter *waiter = calloc(1, sizeof(*waiter));

    if (waiter == NULL) {
        return -ENOMEM;
    }
    waiter->fn = fn;
    waiter->arg = arg;
    list_append(waits, &waiter->link);
    return 0;
}

void sandbox_fail(struct sandbox *sb, const char *code, const char *message)
{
    struct error err = {0};

    if (sb->info.state != SANDBOX_STATE_CREATING && sb->info.state != SANDBOX_STATE_RUNNING) {
        return;
    }
    log_warning("sandbox failed", "sandbox=%s code=%s message=\"%s\"", sb->info.id, code, message);
    (void)snprintf(sb->info.reason_code, sizeof(sb->info.reason_code), "%s", code);
    sb->taken = false;
    sb->node->hooks.on_lost(sb->node->hooks_ctx, sb, "crashed");
    set_state(sb, SANDBOX_STATE_ERROR);
    (void)error_set_code(&err, ERROR_SERVICE_UNAVAILABLE, NULL, "%s: %s", code, message);
    tell(&sb->running_waits, NULL, &err);
}

static void
on_agent_failed(void *arg, struct agent *agent, enum agent_failure failure, const char *message)
{
    struct sandbox *sb = arg;

    sandbox_fail(sb, agent_failure_code(failure), message);
    sb->agent = NULL;
    agent_free(agent);
}

static void become_running(struct sandbox *sb)
{
    if (sb->identified && sb->holds == 0 && sb->info.state == SANDBOX_STATE_CREATING) {
        set_state(sb, SANDBOX_STATE_RUNNING);
        tell(&sb->running_waits, sb, NULL);
    }
}

void sandbox_hold_creation(struct sandbox *sb)
{
    sb->holds++;
}

void sandbox_release_creation(struct sandbox *sb)
{
    sb->holds--;
    become_running(sb);
}

static void on_identified(void *arg, int result, const struct agent_identity_ok *answer)
{
    struct sandbox *sb = arg;

    if (result != 0 || answer == NULL) {
        if (result != -ECANCELED) {
            sandbox_fail(sb, "identity", strerror(result));
        }
        return;
    }
    sb->identified = true;
    become_running(sb);
}

static void on_greeted(void *arg, int result)
{
    struct sandbox *sb = arg;

    if (result == 0 && sb->adopted) {
        set_state(sb, SANDBOX_STATE_RUNNING);
        tell(&sb->running_waits, sb, NULL);
    }
}

static void greet(struct sandbox *sb)
{
    static const uint8_t entropy[AGENT_ENTROPY_BYTES];
    struct agent_identity identity = {
        .epoch = 1,
        .entropy = span_make(entropy, sizeof(entropy)),
        .realtime_ns = (uint64_t)clock_real_ns(),
        .hostname = span_of_str("rig"),
    };

    if (sb->adopted) {
        sb->taken = true;
        sb->node->hooks.on_agent(sb->node->hooks_ctx, sb, true);
        agent_begin(sb->agent, false, BEGIN_MS, on_greeted, sb);
        return;
    }
    agent_begin(sb->agent, true, BEGIN_MS, on_greeted, sb);
    agent_identify(sb->agent, &identity, BEGIN_MS, on_identified, sb);
    sb->taken = true;
    sb->node->hooks.on_agent(sb->node->hooks_ctx, sb, false);
}

static void on_connect_timer(void *arg)
{
    static const struct agent_callbacks callbacks = {on_agent_failed};
    struct sandbox *sb = arg;
    char path[SETTINGS_PATH_SIZE + 32];

    if (sb->agent == NULL) {
        sb->agent = agent_new(sb->node->loop, &callbacks, sb);
    }
    (void)snprintf(path, sizeof(path), "%s/%s.agent", sb->node->settings.run_dir, sb->info.id);
    if (sb->agent != NULL && agent_connect(sb->agent, path) == 0) {
        greet(sb);
        return;
    }
    if (++sb->tries > CONNECT_TRIES) {
        sandbox_fail(sb, "agent_closed", "nobody listens");
        return;
    }
    loop_timer_start(sb->timer, CONNECT_PAUSE_MS);
}

static pid_t start_agent(struct node *node, const char *id)
{
    char path[SETTINGS_PATH_SIZE + 32];
    char *mode = node->parts->agent_mode;
    char *argv[4] = {NULL, mode[0] != '\0' ? mode : (char[]){"--agent"}, path, NULL};
    pid_t pid = -1;

    if (node->parts->options.agent_program == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/%s.agent", node->settings.run_dir, id);
    argv[0] = strdup(node->parts->options.agent_program);
    if (posix_spawn(&pid, node->parts->options.agent_program, NULL, NULL, argv, environ) != 0) {
        pid = -1;
    }
    free(argv[0]);
    return pid;
}

static struct sandbox *sandbox_new(struct node *node, const char *id)
{
    struct sandbox *sb = calloc(1, sizeof(*sb));

    if (sb == NULL) {
        return NULL;
    }
    sb->node = node;
    list_init(&sb->running_waits);
    list_init(&sb->gone_waits);
    (void)snprintf(sb->info.id, sizeof(sb->info.id), "%s", id);
    (void)snprintf(sb->info.template_name, sizeof(sb->info.template_name), "base");
    (void)snprintf(sb->info.user, sizeof(sb->info.user), "root");
    sb->info.vcpus = 1;
    sb->env = json_object();
    sb->timer = loop_timer_new(node->loop, on_connect_timer, sb);
    if (mkdirat(node->parts->sandboxes_fd, id, 0700) < 0 && errno != EEXIST) {
        log_error("mkdir", "error=%d", errno);
    }
    sb->dir_fd =
        openat(node->parts->sandboxes_fd, id, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    list_append(&node->parts->sandboxes, &sb->link);
    return sb;
}

int sandbox_create(struct node *node,
                   const struct sandbox_spec *spec,
                   struct sandbox **ret_sb,
                   struct error *err)
{
    struct sandbox *sb = sandbox_find(node, spec->id);

    if (sb != NULL && sb->info.state == SANDBOX_STATE_DELETING) {
        return error_set_code(err, ERROR_CONFLICT, NULL, "the sandbox is being deleted");
    }
    if (sb != NULL) {
        *ret_sb = sb;
        return 0;
    }
    if (strcmp(spec->template_name, "base") != 0) {
        return error_set_code(err, ERROR_NOT_FOUND, "template", "no template %.60s",
                              spec->template_name);
    }
    sb = sandbox_new(node, spec->id);
    if (sb == NULL) {
        return error_set(err, ENOMEM, "out of memory");
    }
    if (spec->env != NULL) {
        (void)json_object_update(sb->env, spec->env);
    }
    sb->info.state = SANDBOX_STATE_CREATING;
    sb->pid = start_agent(node, spec->id);
    loop_timer_start(sb->timer, 0);
    *ret_sb = sb;
    return 0;
}

static void on_tell_running(void *arg)
{
    struct sandbox *sb = arg;

    if (sb->info.state == SANDBOX_STATE_RUNNING) {
        tell(&sb->running_waits, sb, NULL);
    }
}

int sandbox_wait_running(struct sandbox *sb, sandbox_wait_fn fn, void *arg)
{
    int r = add_wait(&sb->running_waits, fn, arg);

    return r < 0 ? r : loop_defer(sb->node->loop, on_tell_running, sb);
}

static void finish_delete(void *arg)
{
    struct sandbox *sb = arg;
    struct node *node = sb->node;
    struct error err = {0};

    (void)error_set_code(&err, ERROR_CONFLICT, NULL, "the sandbox was deleted");
    tell(&sb->running_waits, NULL, &err);
    set_state(sb, SANDBOX_STATE_DELETED);
    node->hooks.on_free(node->hooks_ctx, sb);
    (void)dir_remove_tree(node->parts->sandboxes_fd, sb->info.id);
    tell(&sb->gone_waits, NULL, NULL);
    list_remove(&sb->link);
    (void)close(sb->dir_fd);
    json_decref(sb->env);
    loop_timer_free(sb->timer);
    free(sb);
}

struct told {
    sandbox_wait_fn fn;
    void *arg;
};

static void tell_unknown(void *arg)
{
    struct told *told = arg;

    told->fn(told->arg, NULL, NULL);
    free(told);
}

int sandbox_delete(struct node *node, const char *id, sandbox_wait_fn fn, void *arg)
{
    struct sandbox *sb = sandbox_find(node, id);
    bool had_agent;

    if (sb == NULL) {
        struct told *told = fn != NULL ? calloc(1, sizeof(*told)) : NULL;

        if (fn == NULL) {
            return 0;
        }
        if (told == NULL) {
            return -ENOMEM;
        }
        *told = (struct told){fn, arg};
        return loop_defer(node->loop, tell_unknown, told);
    }
    if (fn != NULL && add_wait(&sb->gone_waits, fn, arg) < 0) {
        return -ENOMEM;
    }
    if (sb->info.state == SANDBOX_STATE_DELETING) {
        return 0;
    }
    had_agent = sb->info.state != SANDBOX_STATE_ERROR;
    set_state(sb, SANDBOX_STATE_DELETING);
    if (had_agent) {
        node->hooks.on_lost(node->hooks_ctx, sb, "deleted");
    }
    sb->taken = false;
    loop_timer_stop(sb->timer);
    agent_free(TAKE(sb->agent));
    if (sb->pid > 0) {
        (void)kill(sb->pid, SIGKILL);
        (void)waitpid(sb->pid, NULL, 0);
    }
    return loop_defer(node->loop, finish_delete, sb);
}

static void cancel(struct list *waits, const void *arg)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, waits)
    {
        struct waiter *waiter = list_entry(it, struct waiter, link);

        if (waiter->arg == arg) {
            list_remove(&waiter->link);
            free(waiter);
        }
    }
}

void sandbox_cancel_waits(struct node *node, const void *arg)
{
    struct list *it;
    struct list *following;

    list_foreach(it, following, &node->parts->sandboxes)
    {
        struct sandbox *sb = list_entry(it, struct sandbox, link);

        cancel(&sb->running_waits, arg);
        cancel(&sb->gone_waits, arg);
    }
}

/* ---- the node ---- */

bool node_is_ready(const struct node *node)
{
    for (struct list *it = node->parts->sandboxes.next; it != &node->parts->sandboxes;
         it = it->next) {
        const struct sandbox *sb = list_entry(it, struct sandbox, link);

        if (sb->adopted && sb->info.state == SANDBOX_STATE_CREATING) {
            return false;
        }
    }
    return true;
}

json_t *node_describe(struct node *node)
{
    return json_pack("{s:s, s:b}", "name", "rig", "ready", node_is_ready(node));
}

json_t *node_list_templates(struct node *node)
{
    (void)node;
    return json_pack("[{s:s}]", "name", "base");
}

static void adopt_all(struct node *node)
{
    _cleanup_closedir_ DIR *dir = fdopendir(dup(node->parts->sandboxes_fd));
    const struct dirent *entry;

    while (dir != NULL && (entry = readdir(dir)) != NULL) { /* NOLINT(concurrency-mt-unsafe) */
        struct sandbox *sb;

        if (!id_is_valid(entry->d_name, "sb")) {
            continue;
        }
        sb = sandbox_new(node, entry->d_name);
        if (sb != NULL) {
            sb->adopted = true;
            sb->info.state = SANDBOX_STATE_CREATING;
            loop_timer_start(sb->timer, 0);
        }
    }
}

/* One "KEY=VALUE". */
static void set(struct node *node, struct node_parts *parts, const char *setting)
{
    struct span text = span_of_str(setting);
    size_t equals = span_find(text, 0, '=');
    const char *value = &setting[equals < text.n ? equals + 1 : equals];
    char key[64] = "";
    struct error err = {0};
    int r = span_copy_str(span_head(text, equals), key, sizeof(key));

    if (r == 0 && strcmp(key, "timeout_guard_ms") == 0) {
        r = span_parse_u64(span_of_str(value), INT32_MAX, &parts->timeout_guard_ms);
    } else if (r == 0 && strcmp(key, "checkpoints") == 0) {
        r = span_parse_u64(span_of_str(value), 10000, &parts->checkpoints);
    } else if (r == 0 && strcmp(key, "agent_mode") == 0) {
        r = span_copy_str(span_of_str(value), parts->agent_mode, sizeof(parts->agent_mode));
    } else if (r == 0) {
        r = settings_set(&node->settings, key, value, &err);
    }
    if (r < 0) {
        (void)fprintf(stderr, "%s: %s\n", setting, err.message);
    }
}

static void prepare(struct node *node, struct node_parts *parts)
{
    const struct data_rig_options *o = &parts->options;

    settings_init(&node->settings);
    (void)snprintf(node->settings.run_dir, sizeof(node->settings.run_dir), "%s", o->run_dir);
    (void)snprintf(node->settings.service_user, sizeof(node->settings.service_user), "root");
    if (o->spool_bytes != 0) {
        node->settings.node_spool_bytes = o->spool_bytes;
    }
    if (o->max_processes != 0) {
        node->settings.node_max_processes = o->max_processes;
    }
    if (o->keep_minutes != 0) {
        node->settings.node_session_keep_minutes = o->keep_minutes;
    }
    for (size_t i = 0; o->settings != NULL && o->settings[i] != NULL; i++) {
        set(node, parts, o->settings[i]);
    }
    node->parts = parts;
    node->started_at_ms = clock_real_ms();
}

int data_rig_run(const struct data_rig_options *options)
{
    struct node node = {0};
    struct node_parts parts = {.options = *options};
    struct data *data = NULL;
    struct error err = {0};
    int r;

    list_init(&parts.sandboxes);
    parts.sandboxes_fd = open(options->data_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    node.loop = loop_new(0);
    if (parts.sandboxes_fd < 0 || node.loop == NULL) {
        return -errno;
    }
    prepare(&node, &parts);
    r = data_new(&node, &data, &err);
    if (r == 0) {
        if (parts.timeout_guard_ms != 0) {
            data->timeout_guard_ms = (int64_t)parts.timeout_guard_ms;
        }
        adopt_all(&node);
        r = data_serve(data, &err);
    }
    if (r < 0) {
        (void)fprintf(stderr, "%s\n", err.message);
        return r;
    }
    r = loop_run(node.loop);
    data_free(data);
    while (!list_is_empty(&parts.sandboxes)) {
        struct sandbox *sb = list_entry(parts.sandboxes.next, struct sandbox, link);

        agent_free(sb->agent);
        loop_timer_free(sb->timer);
        json_decref(sb->env);
        (void)close(sb->dir_fd);
        list_remove(&sb->link);
        free(sb);
    }
    (void)close(parts.sandboxes_fd);
    loop_free(node.loop);
    return r;
}
