/* The qemu driver: what the runtime's commands are in QMP. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <jansson.h>
#include <openssl/evp.h>

#include "base/buf.h"
#include "io/loop.h"
#include "node/qemu_args.h"
#include "node/qmp.h"
#include "node/qmp_parse.h"
#include "node/runtime.h"

struct pending {
    runtime_done_fn done;
    void *arg;
};

struct runtime_vm {
    struct qmp *qmp;
    struct runtime_callbacks callbacks;
    void *arg;
    struct pending load; /* answered by an event */
    struct pending command;
    struct pending save;
    int64_t save_set; /* its set of descriptors; -1: none */
    runtime_console_fn console;
    void *console_arg;
    runtime_status_fn status;
    void *status_arg;
};

static void finish(struct pending *slot, const struct error *err)
{
    struct pending p = *slot;

    *slot = (struct pending){NULL, NULL};
    if (p.done != NULL) {
        p.done(p.arg, err);
    }
}

static void on_ready(void *arg)
{
    struct runtime_vm *rvm = arg;

    rvm->callbacks.on_ready(rvm->arg);
}

static void on_migration(struct runtime_vm *rvm, const json_t *data)
{
    const char *status = qmp_string(data, "status");
    struct error err = {0};

    if (status == NULL) {
        return;
    }
    if (strcmp(status, "completed") == 0) {
        finish(&rvm->load, NULL);
    } else if (strcmp(status, "failed") == 0) {
        (void)error_set(&err, EIO, "the VMM cannot load the device state");
        finish(&rvm->load, &err);
    }
}

static void on_event(void *arg, const char *name, const json_t *data)
{
    struct runtime_vm *rvm = arg;

    if (strcmp(name, "MIGRATION") == 0) {
        on_migration(rvm, data);
    } else if (strcmp(name, "SHUTDOWN") == 0) {
        const char *reason = qmp_string(data, "reason");
        bool reset = reason != NULL && strcmp(reason, "guest-reset") == 0;

        rvm->callbacks.on_event(rvm->arg, reset ? RUNTIME_EVENT_REBOOT : RUNTIME_EVENT_POWEROFF,
                                reset ? "the guest restarted" : "the guest powered off");
    }
}

static void on_failed(void *arg, const char *message)
{
    struct runtime_vm *rvm = arg;

    rvm->callbacks.on_event(rvm->arg, RUNTIME_EVENT_FAILED, message);
}

static void qemu_detach(struct runtime_vm *rvm)
{
    if (rvm != NULL) {
        qmp_free(rvm->qmp);
        free(rvm);
    }
}

static struct runtime_vm *qemu_attach(struct loop *loop,
                                      const char *socket_path,
                                      const struct runtime_callbacks *callbacks,
                                      void *arg)
{
    static const struct qmp_callbacks qmp_callbacks = {on_ready, on_event, on_failed};
    struct runtime_vm *rvm = calloc(1, sizeof(*rvm));

    if (rvm == NULL) {
        return NULL;
    }
    rvm->callbacks = *callbacks;
    rvm->arg = arg;
    rvm->qmp = qmp_new(loop, &qmp_callbacks, rvm);
    if (rvm->qmp == NULL || qmp_connect(rvm->qmp, socket_path) < 0) {
        qemu_detach(rvm);
        return NULL;
    }
    return rvm;
}

/* The answer of the command that `command` waits for. */
static void on_command(void *arg, const json_t *body, const struct error *err)
{
    struct runtime_vm *rvm = arg;

    (void)body;
    finish(&rvm->command, err);
}

static void on_load_command(void *arg, const json_t *body, const struct error *err)
{
    struct runtime_vm *rvm = arg;

    (void)body;
    if (err != NULL) {
        finish(&rvm->load, err);
    }
}

static void qemu_load(struct runtime_vm *rvm, int state_fd, runtime_done_fn done, void *arg)
{
    rvm->load = (struct pending){done, arg};
    qmp_send(rvm->qmp, "migrate-set-capabilities",
             json_pack("{s:[{s:s, s:b}]}", "capabilities", "capability", "events", "state", 1), -1,
             on_load_command, rvm);
    qmp_send(rvm->qmp, "getfd", json_pack("{s:s}", "fdname", "state"), state_fd, on_load_command,
             rvm);
    qmp_send(rvm->qmp, "migrate-incoming", json_pack("{s:s}", "uri", "fd:state"), -1,
             on_load_command, rvm);
}

static void on_fd_removed(void *arg, const json_t *body, const struct error *err)
{
    (void)arg;
    (void)body;
    (void)err; /* it takes a descriptor of the VMM's, no more */
}

static void on_saved(void *arg, const json_t *body, const struct error *err)
{
    struct runtime_vm *rvm = arg;

    (void)body;
    qmp_send(rvm->qmp, "remove-fd", json_pack("{s:I}", "fdset-id", (json_int_t)rvm->save_set), -1,
             on_fd_removed, rvm);
    finish(&rvm->save, err);
}

/* A set of its own for each save: the VMM writes to the first descriptor of a set that fits. */
static void on_fd_added(void *arg, const json_t *body, const struct error *err)
{
    struct runtime_vm *rvm = arg;
    const json_t *id = err == NULL ? json_object_get(body, "fdset-id") : NULL;
    struct error bad = {0};
    char name[40];

    if (err == NULL && (!json_is_integer(id) || json_integer_value(id) < 0)) {
        (void)error_set(&bad, EBADMSG, "the VMM took no descriptor");
        err = &bad;
    }
    if (err != NULL) {
        finish(&rvm->save, err);
        return;
    }
    rvm->save_set = json_integer_value(id);
    (void)snprintf(name, sizeof(name), "/dev/fdset/%lld", (long long)rvm->save_set);
    qmp_send(rvm->qmp, "xen-save-devices-state",
             json_pack("{s:s, s:b}", "filename", name, "live", 0), -1, on_saved, rvm);
}

static void qemu_save(struct runtime_vm *rvm, int state_fd, runtime_done_fn done, void *arg)
{
    rvm->save = (struct pending){done, arg};
    qmp_send(rvm->qmp, "add-fd", json_object(), state_fd, on_fd_added, rvm);
}

static void qemu_cont(struct runtime_vm *rvm, runtime_done_fn done, void *arg)
{
    rvm->command = (struct pending){done, arg};
    qmp_send(rvm->qmp, "cont", NULL, -1, on_command, rvm);
}

static void qemu_stop(struct runtime_vm *rvm, runtime_done_fn done, void *arg)
{
    rvm->command = (struct pending){done, arg};
    qmp_send(rvm->qmp, "stop", NULL, -1, on_command, rvm);
}

static void
qemu_resize_disk(struct runtime_vm *rvm, uint64_t bytes, runtime_done_fn done, void *arg)
{
    rvm->command = (struct pending){done, arg};
    qmp_send(rvm->qmp, "block_resize",
             json_pack("{s:s, s:I}", "node-name", "disk", "size", (json_int_t)bytes), -1,
             on_command, rvm);
}

/* Decodes base64 into out. 0 or -EBADMSG. */
static int decode_base64(const char *text, struct buf *out)
{
    size_t n = strlen(text);
    uint8_t *room;
    int got;

    if (n % 4 != 0 || n > 2U * QEMU_CONSOLE_BYTES) {
        return -EBADMSG;
    }
    room = buf_reserve(out, n / 4 * 3 + 1);
    if (room == NULL) {
        return -ENOMEM;
    }
    got = EVP_DecodeBlock(room, (const unsigned char *)text, (int)n);
    if (got < 0) {
        return -EBADMSG;
    }
    while (got > 0 && n > 0 && text[n - 1] == '=') {
        got--;
        n--;
    }
    buf_commit(out, (size_t)got);
    return 0;
}

static void on_console(void *arg, const json_t *body, const struct error *err)
{
    struct runtime_vm *rvm = arg;
    runtime_console_fn fn = TAKE(rvm->console);
    _cleanup_buf_ struct buf text = buf_make(2U * QEMU_CONSOLE_BYTES);
    struct error bad = {0};

    if (fn == NULL) {
        return;
    }
    if (err == NULL) {
        const char *encoded = json_string_value(body);

        if (encoded == NULL || decode_base64(encoded, &text) < 0) {
            (void)error_set(&bad, EBADMSG, "the VMM's console cannot be read");
            err = &bad;
        }
    }
    fn(rvm->console_arg, err == NULL ? &text : NULL, err);
}

static void qemu_read_console(struct runtime_vm *rvm, runtime_console_fn done, void *arg)
{
    rvm->console = done;
    rvm->console_arg = arg;
    qmp_send(rvm->qmp, "ringbuf-read",
             json_pack("{s:s, s:i, s:s}", "device", "console", "size", (int)QEMU_CONSOLE_BYTES,
                       "format", "base64"),
             -1, on_console, rvm);
}

static void on_status(void *arg, const json_t *body, const struct error *err)
{
    struct runtime_vm *rvm = arg;
    runtime_status_fn fn = TAKE(rvm->status);
    const char *name = err == NULL ? qmp_string(body, "status") : NULL;
    enum runtime_status status = RUNTIME_STATUS_STOPPED;

    if (name != NULL && strcmp(name, "running") == 0) {
        status = RUNTIME_STATUS_RUNNING;
    } else if (name != NULL && strcmp(name, "shutdown") == 0) {
        status = RUNTIME_STATUS_ENDED;
    }
    if (fn != NULL) {
        fn(rvm->status_arg, status, err);
    }
}

static void qemu_check(struct runtime_vm *rvm, runtime_status_fn done, void *arg)
{
    rvm->status = done;
    rvm->status_arg = arg;
    qmp_send(rvm->qmp, "query-status", NULL, -1, on_status, rvm);
}

static bool qemu_maps_ram_file(const struct runtime *rt)
{
    return rt->own.major >= 9; /* rom=off came with 9.0 (8.2 in part) */
}

static const struct runtime_ops qemu_ops = {
    .name = "qemu",
    .detect = qemu_detect,
    .set_accelerator = qemu_set_accelerator,
    .maps_ram_file = qemu_maps_ram_file,
    .plan = qemu_build_args,
    .attach = qemu_attach,
    .detach = qemu_detach,
    .load = qemu_load,
    .save = qemu_save,
    .cont = qemu_cont,
    .stop = qemu_stop,
    .resize_disk = qemu_resize_disk,
    .read_console = qemu_read_console,
    .check = qemu_check,
    .last_words = qemu_last_words,
};

const struct runtime_ops *const runtime_driver = &qemu_ops;
